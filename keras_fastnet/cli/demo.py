"""`fastnet demo`: the example `digits.py`, in several local workers."""

import argparse
import importlib.util
import os
from pathlib import Path

from keras_fastnet.arguments import check_integer
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.mpiexec import mpi_is_installed

# `keras_fastnet/examples` is a link to the `examples` of the checkout, so that a
# wheel carries them too.
SCRIPT = Path(__file__).parents[1] / "examples" / "digits.py"

_DESCRIPTION = """\
Train a small network on the 1,797 handwritten digits of scikit-learn, augmented to
65,536 images an epoch, with a global batch that grows from 8,192 to 32,768, divided
among local workers: LARS, micro-batches, warm-up, polynomial decay and Keras's own fit.
It ends with a table, and with exit code 1 if the test accuracy stays below 98 % or the
workers' weights differ. Gradients go over MPI where keras-fastnet[mpi] is installed.
Takes about a minute on two CPUs.
"""

_EPILOG = """\
examples:
  fastnet demo
      four workers, a global batch of up to 32,768
  fastnet demo --workers 1
      the same training in one process
  fastnet demo --global-batch 8192 --epochs 20
      a smaller batch: four times as many updates an epoch

The script is plain Keras and yours to copy: """


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="train on real digits in four local workers, in about a minute",
        description=_DESCRIPTION,
        epilog=f"{_EPILOG}{SCRIPT}\n",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=4,
        metavar="N",
        help="how many workers (default: %(default)d)",
    )
    # Their defaults are the script's own.
    parser.add_argument(
        "--epochs", type=int, metavar="E", help="epochs of 65,536 images (default: 30)"
    )
    parser.add_argument(
        "--global-batch",
        type=int,
        metavar="B",
        help="images in an update, over all workers (default: 32768)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet demo` and returns its exit code."""
    command = [str(SCRIPT)]
    for option, value, default in (
        ("--epochs", arguments.epochs, 30),
        ("--global-batch", arguments.global_batch, 32_768),
    ):
        if value is None:
            continue
        check_integer(option, value, 1, example=default)
        if option == "--global-batch" and value % 4:
            raise UsageError(
                "--global-batch must be a multiple of 4: an update is made of four "
                f"micro-batches. Received: {value}. Near it: {value // 4 * 4 + 4}."
            )
        command += [option, str(value)]
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError(
            "The demo needs scikit-learn, which ships its digits. Received: an "
            'environment without it. Run `pip install "keras-fastnet[examples]"`.'
        )
    # Not TensorFlow's C++ messages: a demo shows the training.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    mpi = arguments.workers > 1 and mpi_is_installed()
    return launcher.run(arguments.workers, command, environment=environment, mpi=mpi)
