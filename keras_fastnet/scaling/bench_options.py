"""`BenchOptions`: the options of `fastnet bench`, as its workers receive them."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal

from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.errors import UsageError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}
"""Bytes in a unit, by the unit's name."""


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """The options of `fastnet bench`, the same on every worker.

    Attributes:
        sizes: Bytes of the vectors, in rising order.
        grids: The grids to compare; empty for the default grids.
        repeats: The number of rounds.
        wire_dtype: The dtype that `float32` is sent as.
        transport: The library that carries the vectors between local workers.
        model: The name of one of Keras's applications; `None` for no training.
        batch: The per-replica batch size.
        image_size: Height and width of an image.
        output: The file to write.
        command: The command line.
    """

    sizes: tuple[int, ...]
    grids: tuple[Grid, ...]
    repeats: int
    wire_dtype: Literal["float32", "bfloat16", "float16"]
    transport: Literal["auto", "tensorflow", "mpi"]
    model: str | None
    batch: int
    image_size: int
    output: str
    command: str

    def to_json(self) -> str:
        """Returns the options as text, for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BenchOptions":
        """Returns the options that `to_json` wrote."""
        values = json.loads(text)
        grids = tuple(Grid(**grid) for grid in values["grids"])
        return cls(**{**values, "sizes": tuple(values["sizes"]), "grids": grids})


def size_text(nbytes: int) -> str:
    """Returns a size in its largest unit without a fraction, such as `"4 KiB"`."""
    for unit in ("MiB", "MB", "KiB", "KB"):
        if nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]:,} {unit}"
    return f"{nbytes:,} B"


def check_ranks(ranks: int, grids: Sequence[Grid]) -> None:
    """Checks that all-reduces of so many ranks can be measured on the grids.

    Args:
        ranks: The number of ranks.
        grids: The grids to compare.

    Raises:
        UsageError: If there is only one rank, or a grid has another size.
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
