"""`fastnet check`: checks that training on N workers equals training on one device."""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from keras_fastnet.cli.option_types import (
    add_transport,
    add_workers,
    has_workers_option,
    number,
)
from keras_fastnet.cluster.environment import in_a_cluster
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher

DEFAULT_WORKERS = 2

_DESCRIPTION = """\
Check that several workers train like one device: train small models for a few updates
both ways, and compare. Without SOURCE the update of a small network is compared; with
it, that of your own model.
"""

_EPILOG = """\
SOURCE is one of
  train.py [args…]  a training script as it is: it runs until its first `fit`, and the
                    model is checked with the data of that call
  model.keras       a compiled model that was saved; its data are random

examples:
  fastnet check
      two workers on this machine, a small network
  fastnet check --workers 4 train.py
      four workers, and the model that your script trains; options after the script
      are passed to it
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
        usage="fastnet check [options] [train.py [args…] | model.keras]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_workers(
        parser,
        "start N workers on this machine (default: take part in the cluster of "
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
    # Takes all words that follow, also those that start with a dash.
    parser.add_argument(
        "source",
        nargs=argparse.REMAINDER,
        metavar="SOURCE …",
        help="what to check (default: a small network)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet check` and returns its exit code."""
    source = _checked_source(arguments.source)
    if arguments.workers is None and has_workers_option(source):
        raise UsageError(
            "--workers N must stand before the script. Received: it after the script. "
            "Write, for example, `fastnet check --workers 2 train.py`."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.workers is None and in_a_cluster():
        from keras_fastnet.checks.worker import check_cluster

        return check_cluster(source, arguments.timeout)[1]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        words = [str(arguments.timeout), str(answer), *source]
        failure = launcher.run(
            arguments.workers or DEFAULT_WORKERS,
            ["-m", "keras_fastnet.checks.worker", *words],
            transport=arguments.transport,
        )
        if failure:
            return failure
        # A worker whose check fails still exits with 0, and writes the code.
        code, _, message = answer.read_text(encoding="utf-8").partition("\n")
    if message:
        raise UsageError(message)
    return int(code)


def _checked_source(words: Sequence[str]) -> Sequence[str]:
    """Returns SOURCE and the words after it, which only a script may have.

    Raises:
        UsageError: If SOURCE is no script or saved model, or the words are wrong.
    """
    if not words:
        return words
    name, *arguments = words
    script, colon, function = name.partition(":")
    if colon and script.endswith(".py"):
        raise UsageError(
            "SOURCE must be a script alone: the model is taken at its first `fit`. "
            f"Received: {name}, with the function {function!r}, which is not used any "
            f"more. Write `fastnet check {script}`."
        )
    path = Path(name)
    if path.suffix not in (".keras", ".py"):
        raise UsageError(
            "SOURCE must be a .keras file or a .py script, after the options. "
            f"Received: {name}. See `fastnet check --help`."
        )
    if not path.is_file():
        raise UsageError(
            f"SOURCE must be a file that exists. Received: {name}, which was not "
            f"found. Check the path; the current directory is {Path.cwd()}."
        )
    if arguments and path.suffix == ".keras":
        raise UsageError(
            "Options of `fastnet check` must stand before SOURCE. Received: "
            f"{' '.join(arguments)}, after {name}. Move them to the front."
        )
    return words
