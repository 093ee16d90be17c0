"""The results of `fastnet bench`: reading its files, and its table."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from keras_fastnet.collectives.cost_model import (
    ALGORITHMS,
    WIRE_BYTES,
    Algorithm,
    Topology,
    Work,
    work_of,
)
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.text import count, table

FORMAT = 1
"""The version of the files that `fastnet bench` writes."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One all-reduce that was timed.

    Attributes:
        algorithm: The algorithm.
        grid: The grid.
        topology: The ranks' hosts.
        nbytes: Bytes of each rank's vector, as sent.
        seconds: The time it took.
        buckets: The number of buckets that the vector was sent in. Defaults to `1`.
    """

    algorithm: Algorithm
    grid: Grid
    topology: Topology
    nbytes: float
    seconds: float
    buckets: int = 1

    @property
    def work(self) -> Work:
        """The work of one rank, on an unshared core."""
        work = work_of(
            self.algorithm, self.grid, self.topology, self.nbytes, self.buckets
        )
        return work.on_shared_cores(self.topology.ranks_per_core)


def read_measurements(path: str | Path) -> list[Measurement]:
    """Returns the all-reduces in a file that `fastnet bench` wrote.

    Raises:
        ValueError: If there is no such file, or it has a different format.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document.get("format") != FORMAT:
            raise ValueError(f'no "format": {FORMAT}')
        # The others are those of other libraries, or were chosen by a strategy.
        return [
            _measurement(entry, document)
            for entry in document["all_reduce"]
            if entry["algorithm"] in ALGORITHMS
        ]
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"A bench file must come from `fastnet bench`, with format {FORMAT}. "
            f"Received: {path} ({type(error).__name__}: {error}). Write one with this "
            "version of `fastnet bench`."
        ) from error


def as_text(document: dict[str, Any]) -> str:
    """Returns results as a table."""
    head = (
        f"{document['ranks']} ranks on {count(document['hosts'], 'host')}, transport "
        f"{document['transport']}, {document['wire_dtype']} on the wire; milliseconds, "
        f"median of {document['rounds']} rounds, * is the fastest"
    )
    by_size: dict[int, dict[str, float]] = {}
    for row in document["all_reduce"]:
        by_size.setdefault(row["bytes"], {})[_name(row)] = row["seconds"]
    columns = list(dict.fromkeys(name for found in by_size.values() for name in found))
    rows = [["bytes", *columns, "best/ring"]]
    for nbytes, found in by_size.items():
        best = min(found.values())
        cells = [
            f"{found[name] * 1e3:.2f}{'*' if found[name] == best else ' '}"
            if name in found
            else "- "
            for name in columns
        ]
        rows.append([f"{nbytes:,}", *cells, f"{best / found['ring']:.2f}"])
    return "\n".join([head, *table(rows, left=1)])


def _name(row: dict[str, Any]) -> str:
    algorithm = row["algorithm"]
    if algorithm not in ("torus", "gather"):
        return algorithm
    return "{} {}x{}".format(algorithm, *row["grid"])


def _measurement(entry: dict[str, Any], document: dict[str, Any]) -> Measurement:
    topology = Topology(
        hosts=int(document["hosts"]),
        ranks_per_host=int(document["ranks_per_host"]),
        cores=int(document["cores_per_host"]),
    )
    algorithm, grid = entry["algorithm"], Grid(*entry["grid"])
    if document["transport"] == "mpi" and algorithm == "ring":
        # A flat sum over MPI is an exchange among all, not a ring.
        algorithm, grid = "torus", Grid(1, grid.size)
    if grid.size != topology.ranks:
        raise ValueError(f"grid {grid} is not one of {topology.ranks} ranks")
    # Sizes are those of `float32` vectors.
    travels = WIRE_BYTES[document["wire_dtype"]] / WIRE_BYTES["float32"]
    nbytes, seconds = entry["bytes"] * travels, float(entry["seconds"])
    if not 0 < seconds < math.inf:
        raise ValueError(f'"seconds" is {seconds!r}, not above 0')
    return Measurement(
        algorithm=algorithm,
        grid=grid,
        topology=topology,
        nbytes=nbytes,
        seconds=seconds,
        buckets=math.ceil(nbytes / document["bucket_bytes"]),
    )
