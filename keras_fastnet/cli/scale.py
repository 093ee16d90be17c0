"""`fastnet scale`: changes the number of workers of a running `fastnet run`."""

import argparse

from keras_fastnet.cli.option_types import integer
from keras_fastnet.launcher import control

_DESCRIPTION = """\
Continue a training that `fastnet run` has started with another number of workers.

All workers end after the same update, with a backup, and training resumes from it. The
global batch, the learning rate and the position in the data stay. The script needs
keras_fastnet.callbacks.BackupAndRestore, and `fastnet run` needs --min-workers or
--max-workers for the numbers that it shall allow. Workers that were left out after
failures come back if the number includes them. With several machines, N is the number
on all of them, and the command is run on machine 0.
"""

_EPILOG = """\
examples:
  fastnet run --workers 4 --min-workers 2 train.py
      in one terminal
  fastnet scale 3
      in another one: continue with three workers
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet scale`."""
    parser = subparsers.add_parser(
        "scale",
        help="change the number of workers of a running training",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "workers",
        type=integer(at_least=1, example=3),
        metavar="N",
        help="number of workers, on all machines",
    )
    parser.add_argument(
        "--pid",
        type=integer(at_least=1, example=4321),
        metavar="P",
        help="process id of `fastnet run` (default: the only one of this user)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet scale` and returns its exit code."""
    print(f"fastnet: {control.request(arguments.workers, arguments.pid)}")
    return 0
