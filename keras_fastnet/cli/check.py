"""`fastnet check`: checks that training on N workers equals training on one device."""

import argparse
import os
import tempfile
from pathlib import Path

from keras_fastnet.cli.option_types import add_transport, integer, number
from keras_fastnet.cluster.environment import in_a_cluster
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher

DEFAULT_WORKERS = 2
_DEFAULT_FUNCTION = "make_model"

_DESCRIPTION = """\
Check that several workers train like one device: train small models for a few updates
both ways, and compare. Without SOURCE the update of a small network is compared; with
it, that of your own model.
"""

_EPILOG = """\
SOURCE is one of
  model.keras       a compiled model that was saved
  train.py          a script with a function `make_model()`, which returns a compiled
                    model
  train.py:network  the same with a function of another name
A script may also define `make_data(examples)`, which returns inputs and targets;
otherwise they are random. Its training must stand under `if __name__ == "__main__":`.

examples:
  fastnet check
      two workers on this machine, a small network
  fastnet check --workers 4 train.py
      four workers, and your model
  TF_CONFIG='{…}' fastnet check train.py
      on each machine of a cluster; rank 0 prints

exit codes: 0, all invariants hold; 1, one does not; 3, none fails, but keras_fastnet
raises an error for this model, as it cannot train it correctly; 2, the command cannot
be carried out.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet check`."""
    parser = subparsers.add_parser(
        "check",
        help="check that several workers train like one device",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "source",
        type=_source,
        nargs="?",
        metavar="SOURCE",
        help="a model to check (default: a small network)",
    )
    parser.add_argument(
        "--workers",
        type=integer(at_least=1, example=DEFAULT_WORKERS),
        metavar="N",
        help="start N workers on this machine (default: take part in the cluster of "
        f"TF_CONFIG, MPI, Slurm or Kubernetes; {DEFAULT_WORKERS} without one)",
    )
    add_transport(parser)
    parser.add_argument(
        "--timeout",
        type=number(above=0.0, example=300.0),
        default=300.0,
        metavar="S",
        help="seconds that the check of one invariant may take; it then fails, as the "
        "workers wait for each other (default: %(default)g)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet check` and returns its exit code."""
    model, function = arguments.source or ("", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.workers is None and in_a_cluster():
        from keras_fastnet.checks.worker import check_cluster

        return check_cluster(model, function, arguments.timeout)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        words = [model, function, str(arguments.timeout), str(answer)]
        failure = launcher.run(
            arguments.workers or DEFAULT_WORKERS,
            ["-m", "keras_fastnet.checks.worker", *words],
            mpi=arguments.transport == "mpi",
        )
        if failure:
            return failure
        # A worker whose check fails still exits with 0, and writes the code.
        code, _, message = answer.read_text(encoding="utf-8").partition("\n")
    if message:
        raise UsageError(message)
    return int(code)


def _source(text: str) -> tuple[str, str]:
    """Converts SOURCE to a file and the name of a function in it."""
    name, _, function = text.partition(":")
    path = Path(name)
    if path.suffix not in (".keras", ".py"):
        raise argparse.ArgumentTypeError(
            "must be a .keras file or a .py script. "
            f"Received: {text}. See `fastnet check --help`."
        )
    if not path.is_file():
        raise argparse.ArgumentTypeError(
            f"must be a file that exists. Received: {name}, which was not found. "
            f"Check the path; the current directory is {Path.cwd()}."
        )
    return str(path), function or _DEFAULT_FUNCTION
