"""`fastnet check`: proves that N workers equal one device."""

import argparse
import math
import os
import tempfile
from pathlib import Path

from keras_fastnet.cluster.environment import in_a_cluster
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.mpiexec import add_transport

DEFAULT_WORKERS = 2

_DESCRIPTION = """\
Prove that several workers train like one device: train small models for a few updates
both ways, and compare. Without SOURCE the update of a small network is checked; with it
that of your own model, too.
"""

_EPILOG = """\
SOURCE is one of
  model.keras       a compiled model that was saved
  train.py          a script with a function `make_model()`, which returns a compiled
                    model
  train.py:network  the same with a function of another name
A script may have `make_data(examples)`, which returns inputs and targets; otherwise
they are random. Its training must stand under `if __name__ == "__main__":`.

examples:
  fastnet check
      two workers on this machine, a small network
  fastnet check --workers 4 train.py
      four of them, and your model
  TF_CONFIG='{…}' fastnet check train.py
      on each machine of a cluster; rank 0 prints

exit codes: 0, all invariants hold; 1, one does not; 3, none fails, but something is
refused, as it would go wrong; 2, the command cannot be carried out.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet check`."""
    parser = subparsers.add_parser(
        "check",
        help="prove that several workers train like one device",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="a model to check (default: a small network)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="start N workers on this machine (default: take part in the cluster of "
        f"TF_CONFIG, MPI, Slurm or Kubernetes; {DEFAULT_WORKERS} without one)",
    )
    add_transport(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds after which an invariant fails whose check does not end, as "
        "workers wait for each other (default: %(default)g)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet check` and returns its exit code."""
    source = arguments.source or ""
    check_source(source)
    seconds = arguments.timeout
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(
            f"--timeout must be a number of seconds above 0. Received: {seconds}. "
            "Pass, for example, `--timeout 300`."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.workers is None and in_a_cluster():
        from keras_fastnet.checks.worker import take_part

        return take_part(source, seconds)
    workers = DEFAULT_WORKERS if arguments.workers is None else arguments.workers
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        words = [source, str(seconds), str(found)]
        command = ["-m", "keras_fastnet.checks.worker", *words]
        # A worker that found something amiss has not failed.
        mpi = arguments.transport == "mpi"
        failure = launcher.run(workers, command, mpi=mpi)
        if failure:
            return failure
        code, _, message = found.read_text(encoding="utf-8").partition("\n")
    if message:
        raise UsageError(message)
    return int(code)


def check_source(source: str) -> tuple[Path, str] | None:
    """Returns the file and the function that the user named.

    Args:
        source: What the user wrote; empty for nothing.

    Returns:
        The file, and the function's name for a script; `None` for nothing.

    Raises:
        UsageError: There is no such file, or it is of another kind.
    """
    if not source:
        return None
    name, _, function = source.partition(":")
    path = Path(name)
    if path.suffix not in (".keras", ".py"):
        raise UsageError(
            "SOURCE must be a .keras file or a .py script. "
            f"Received: {source}. See `fastnet check --help`."
        )
    if not path.is_file():
        raise UsageError(
            f"SOURCE must be a file that exists. Received: {name}, which is not there. "
            f"Look at the path, from {Path.cwd()}."
        )
    return path, function or "make_model"
