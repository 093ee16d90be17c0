"""`fastnet demo`: runs the example `digits.py` in several local workers."""

import argparse
import importlib.util
import os
from pathlib import Path

from keras_fastnet.arguments import multiples_near
from keras_fastnet.cli.option_types import add_workers, integer
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher

# `keras_fastnet/examples` links to the checkout's `examples`, so that the wheel
# contains them.
SCRIPT = Path(__file__).parents[1] / "examples" / "digits.py"

_DESCRIPTION = """\
Train a small network on the 1,797 handwritten digits of scikit-learn, augmented to
65,536 images an epoch, with a global batch that grows from 8,192 to 32,768, divided
among local workers: LARS, micro-batches, warm-up, polynomial decay and Keras's own fit.
It prints a table at the end, and exits with code 1 if the test accuracy stays below
98 % or the workers' weights differ. Gradients travel over MPI if mpi4py and mpich are
installed. Takes about a minute on two CPUs.
"""

_EPILOG = """\
examples:
  fastnet demo
      four workers, a global batch of up to 32,768
  fastnet demo --workers 1
      the same training in one process
  fastnet demo --global-batch 8192 --epochs 20
      a smaller batch: four times as many updates an epoch

The script is plain Keras; copy it to start your own: """


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="train on real digits in four local workers, in about a minute",
        description=_DESCRIPTION,
        epilog=f"{_EPILOG}{SCRIPT}\n",
    )
    add_workers(parser, "number of workers (default: %(default)d)", default=4)
    # The defaults of these two are the script's.
    parser.add_argument(
        "--epochs",
        type=integer(at_least=1, example=30),
        metavar="E",
        help="number of epochs, of 65,536 images each (default: 30)",
    )
    parser.add_argument(
        "--global-batch",
        type=_global_batch,
        metavar="B",
        help="images in an update, over all workers (default: 32768)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet demo` and returns its exit code."""
    command = [str(SCRIPT)]
    for option, value in (
        ("--epochs", arguments.epochs),
        ("--global-batch", arguments.global_batch),
    ):
        if value is not None:
            command += [option, str(value)]
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError(
            "The demo needs scikit-learn, which contains the digits. Received: an "
            "environment without it. Run `pip install scikit-learn`."
        )
    # Hides TensorFlow's C++ messages.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    return launcher.run(arguments.workers, command, environment=environment)


def _global_batch(text: str) -> int:
    size = integer(at_least=1, example=32_768)(text)
    if size % 4:
        raise argparse.ArgumentTypeError(
            "must be a multiple of 4: each update adds up four global micro-batches. "
            f"Received: {size}. Near it: {multiples_near(size, 4)}."
        )
    return size
