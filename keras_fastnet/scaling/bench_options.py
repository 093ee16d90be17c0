"""What `fastnet bench` is asked: its arguments, checked."""

import argparse
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from keras_fastnet.arguments import check_integer
from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.errors import UsageError

DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """What every worker does.

    Attributes:
        sizes: Bytes of the vectors, in rising order.
        grids: The grids to compare; none for the default ones.
        repeats: Number of rounds.
        wire_dtype: What `float32` is rounded to while it travels.
        transport: What carries the vectors between local workers.
        model: One of Keras's applications; `None` for no training.
        batch: Images of one replica in a step.
        image_size: Height and width of an image.
        output: The file to write.
        command: The command line.
    """

    sizes: tuple[int, ...]
    grids: tuple[Grid, ...]
    repeats: int
    wire_dtype: Literal["float32", "bfloat16", "float16"]
    transport: Literal["tensorflow", "mpi"]
    model: str | None
    batch: int
    image_size: int
    output: str
    command: str

    def to_json(self) -> str:
        """Returns a text for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BenchOptions":
        """Returns the options that `to_json` wrote."""
        values = json.loads(text)
        grids = tuple(Grid(**grid) for grid in values["grids"])
        return cls(**{**values, "sizes": tuple(values["sizes"]), "grids": grids})


def options_of(arguments: argparse.Namespace) -> BenchOptions:
    """Checks the command line.

    Raises:
        UsageError: An argument is wrong.
    """
    examples = {"workers": 4, "repeats": 7, "batch": 8, "image_size": 64}
    for name, example in examples.items():
        value = getattr(arguments, name)
        if value is not None:
            check_integer(f"--{name.replace('_', '-')}", value, 1, example)
    return BenchOptions(
        sizes=tuple(sorted({_bytes(text) for text in arguments.sizes.split(",")})),
        grids=tuple(dict.fromkeys(_grid(text) for text in arguments.grid)),
        repeats=arguments.repeats,
        wire_dtype=arguments.wire_dtype,
        transport=arguments.transport,
        model=arguments.model,
        batch=arguments.batch,
        image_size=arguments.image_size,
        output=arguments.output,
        command=_command(arguments),
    )


def check_ranks(ranks: int, grids: Sequence[Grid]) -> None:
    """Refuses what cannot be measured with so many ranks.

    Args:
        ranks: Number of ranks.
        grids: The grids that the user asked for.

    Raises:
        UsageError: There is one rank only, or a grid does not fit.
    """
    if ranks < 2:
        raise UsageError(
            "An all-reduce needs at least two ranks. "
            f"Received: {ranks}. Pass, for example, `--workers 2`."
        )
    for grid in grids:
        if grid.size != ranks:
            fitting = ", ".join(str(fit) for fit in grids_of(ranks))
            raise UsageError(
                f"--grid must have a place for each of the {ranks} ranks. Received: "
                f"{grid}, with {grid.size} places. These fit: {fitting}."
            )


def check_output(output: str) -> None:
    """Refuses a file that cannot be written, before time is spent.

    Args:
        output: The file.

    Raises:
        UsageError: It cannot be written.
    """
    path = Path(output)
    directory = path.parent
    if path.is_dir():
        reason = "it is a directory"
    elif not directory.is_dir():
        reason = f"there is no directory {directory}"
    elif not os.access(path if path.exists() else directory, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise UsageError(
        "--output must be a file that can be written. "
        f"Received: {output} ({reason}). Choose another path."
    )


def _bytes(text: str) -> int:
    units = {unit.lower(): size for unit, size in UNITS.items()}
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = units.get(found[2].lower()) if found else None
    size = int(found[1]) * unit if found and unit else 0
    if size == 0 or size % _FLOAT_BYTES:
        raise UsageError(
            "--sizes must be a list of bytes, each a positive multiple of 4 (float32), "
            f"with or without a unit: {', '.join(filter(None, UNITS))}. "
            f"Received: {text!r}. Write, for example, `--sizes 4KiB,1MiB,100MB`."
        )
    return size


def _grid(text: str) -> Grid:
    found = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", text)
    if found is None:
        raise UsageError(
            "--grid must be rows x columns, two positive integers. "
            f"Received: {text!r}. Write, for example, `--grid 2x4`."
        )
    return Grid(int(found[1]), int(found[2]))


def _command(arguments: argparse.Namespace) -> str:
    words = ["fastnet", "bench"]
    names = ["workers", "sizes", "grid", "repeats", "wire_dtype", "transport"]
    if arguments.model is not None:
        names += ["model", "batch", "image_size"]
    for name in names:
        value = getattr(arguments, name)
        values = value if isinstance(value, list) else [value]
        for each in values:
            if each is not None:
                words += [f"--{name.replace('_', '-')}", str(each)]
    return shlex.join(words)
