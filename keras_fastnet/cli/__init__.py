"""The `fastnet` command.

Each subcommand is a module of this package, listed in `COMMANDS`, with two
functions: `add_parser(subparsers)`, which adds its `argparse` parser and calls
`parser.set_defaults(execute=execute)`, and `execute(arguments)`, which does the
work and returns the exit code. A subcommand reports input that it refuses with
`UsageError`. None of the modules may import TensorFlow or Keras at its top, so
that help and refusals are instant.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_fastnet.cli import bench, check, demo, plan, run
from keras_fastnet.errors import UsageError
from keras_fastnet.version import __version__

COMMANDS = (run, demo, check, bench, plan)

_EPILOG = """\
examples:
  fastnet run --workers 4 train.py --epochs 10
      train on four local workers, as `python train.py --epochs 10` would on one
  fastnet run --workers 2 --dry-run train.py
      show what each worker would be started with, and start nothing
  fastnet check --workers 2 train.py
      prove that the model of `train.py` trains on two workers as on one device
  fastnet bench --workers 4
      time all-reduces of four local workers, flat ring against torus
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --compute-ms 160
      predict what a cluster would reach

`fastnet COMMAND --help` tells more about a command.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one message and a pointer to the help.

    Those of the subcommands are of the same class.
    """

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **settings,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nSee `{self.prog} --help`.\n")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = _Parser(
        prog="fastnet",
        description="Large-batch training of Keras models on several TensorFlow "
        "workers.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--version", action="version", version=f"keras-fastnet {__version__}"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the `fastnet` command.

    Args:
        arguments: The words after `fastnet`. Defaults to those of the process.

    Returns:
        The exit code.
    """
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "execute"):
        parser.print_help()
        return 0
    try:
        return parsed.execute(parsed)
    except UsageError as error:
        print(f"fastnet: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # Before or after the workers' time; the launcher handles it in between.
        return 128 + signal.SIGINT
