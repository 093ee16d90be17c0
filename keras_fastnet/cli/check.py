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
Check that several workers train your model like one device: run the script until its
first `fit`, train its model for a few updates both ways with the data of that call, and
compare weights, the state of layers, and metrics.
"""

_EPILOG = """\
examples:
  fastnet check --workers 4 train.py
      four workers on this machine, and the model that your script trains; options
      after the script are passed to it
  TF_CONFIG='{…}' fastnet check train.py
      on each machine of a cluster; rank 0 prints
  fastnet check
      two workers on this machine, a small network

exit codes: 0, several workers train like one device; 1, they do not; 3, the model
cannot be compared, or keras_fastnet raises an error for it, as it cannot train it
correctly; 2, the command cannot be carried out.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet check`."""
    parser = subparsers.add_parser(
        "check",
        help="check that several workers train like one device",
        usage="fastnet check [options] [train.py [args…]]",
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
        help="seconds until the next verdict; the check then fails, as the workers "
        "wait for each other (default: %(default)g)",
    )
    # Takes all words that follow, also those that start with a dash.
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="train.py …",
        help="the training script, as it is (default: a small network)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet check` and returns its exit code."""
    script = _checked_script(arguments.script)
    if arguments.workers is None and has_workers_option(script):
        raise UsageError(
            "--workers N must stand before the script. Received: `--workers` after the "
            "script. Write, for example, `fastnet check --workers 2 train.py`."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.workers is None and in_a_cluster():
        from keras_fastnet.checks.worker import check_cluster

        return check_cluster(script, arguments.timeout)[1]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        words = [str(arguments.timeout), str(answer), *script]
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


def _checked_script(words: Sequence[str]) -> Sequence[str]:
    """Returns the script and the words after it.

    Raises:
        UsageError: If the first word is not a script.
    """
    if words and not (Path(words[0]).suffix == ".py" and Path(words[0]).is_file()):
        raise UsageError(
            "A script to check must be a .py file that exists, after the options. "
            f"Received: {words[0]}, in the directory {Path.cwd()}. See `fastnet check "
            "--help`."
        )
    return words
