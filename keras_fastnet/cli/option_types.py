"""Types of the options, for `argparse`, and options that several commands have.

A type converts an option's text and raises `ArgumentTypeError` if the text breaks the
option's rule. The error states the rule without the option's name, which the parser
puts in front, then what was received and what to do.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence

from keras_fastnet.collectives.grid import Grid
from keras_fastnet.launcher.worker_environment import Host
from keras_fastnet.text import UNITS

_FLOAT_BYTES = 4


def integer(at_least: int, example: int) -> Callable[[str], int]:
    """Returns the type of an integer.

    Args:
        at_least: The smallest integer allowed.
        example: An integer that the error suggests.
    """

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise argparse.ArgumentTypeError(
                f"must be an integer >= {at_least}. Received: {text}. "
                f"Pass, for example, {example}."
            )
        return number

    return convert


def number(
    example: float, *, at_least: float = 0.0, above: float | None = None
) -> Callable[[str], float]:
    """Returns the type of a finite number.

    Args:
        example: A number that the error suggests.
        at_least: The smallest number allowed. Defaults to `0.0`.
        above: A number that must be exceeded, in place of `at_least`. Defaults to
            `None`.
    """
    bound = f">= {at_least:g}" if above is None else f"above {above:g}"

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        in_range = value >= at_least if above is None else value > above
        if not (math.isfinite(value) and in_range):
            raise argparse.ArgumentTypeError(
                f"must be a finite number {bound}. Received: {text}. "
                f"Pass, for example, {example:g}."
            )
        return value

    return convert


def byte_sizes(text: str) -> tuple[int, ...]:
    """Converts a list of vector sizes, such as `4KiB,1MiB,100MB`, to sorted bytes."""
    return tuple(sorted({_byte_size(size) for size in text.split(",")}))


def _byte_size(text: str) -> int:
    units = {unit.lower(): size for unit, size in UNITS.items()}
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = units.get(match[2].lower()) if match else None
    size = int(match[1]) * unit if match and unit else 0
    if size == 0 or size % _FLOAT_BYTES:
        raise argparse.ArgumentTypeError(
            "must be a list of bytes, each a positive multiple of 4 (float32), "
            f"with or without a unit: {', '.join(filter(None, UNITS))}. "
            f"Received: {text!r}. Pass, for example, 4KiB,1MiB,100MB."
        )
    return size


def grid(text: str) -> Grid:
    """Converts `RxC` to a grid of R rows and C columns."""
    match = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            "must be rows x columns, two positive integers. "
            f"Received: {text!r}. Pass, for example, 2x4."
        )
    return Grid(int(match[1]), int(match[2]))


def hosts(text: str) -> list[Host]:
    """Converts `a:4,b:4` to hosts with their numbers of workers."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]+):([1-9]\d{0,3})", part)
        if match is None:
            raise argparse.ArgumentTypeError(
                "must be addresses of machines, each with its number of workers. "
                f"Received: {text!r}. Pass, for example, a:4,b:4."
            )
        found.append(Host(match[1].strip("[]"), int(match[2])))
    return found


def add_transport(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--transport`."""
    parser.add_argument(
        "--transport",
        choices=("auto", "tensorflow", "mpi"),
        default="auto",
        help="library that carries gradients between TorusStrategy's workers: "
        "TensorFlow's collectives (gRPC, NCCL), or MPI, which is faster on CPUs "
        "(default: MPI on the CPUs of one machine if mpi4py and mpich are installed)",
    )


def add_workers(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds the option `--workers`, or `-n`."""
    parser.add_argument(
        "-n",
        "--workers",
        type=integer(at_least=1, example=2),
        metavar="N",
        help=help,
    )


def has_workers_option(command: Sequence[str]) -> bool:
    """Returns whether `--workers` or `-n` is among the words of a script's command."""
    return any(re.match(r"--workers(=|$)|-n\d*$", word) for word in command)


def as_sentence(error: str) -> str:
    """Returns an error of `argparse` as a sentence about the option.

    Args:
        error: The error, such as `argument --workers: must be an integer >= 1. …`.
    """
    match = re.fullmatch(r"argument (\S+): (must .*)", error, re.DOTALL)
    return error if match is None else f"{match[1]} {match[2]}"
