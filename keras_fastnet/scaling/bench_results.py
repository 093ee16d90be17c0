"""The results of `fastnet bench`: reading its files, and its table."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
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
from keras_fastnet.text import count, size_text, table

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
        """The work of one rank, on a core of its own."""
        work = work_of(
            self.algorithm, self.grid, self.topology, self.nbytes, self.buckets
        )
        return work.on_shared_cores(self.topology.ranks_per_core)


@dataclasses.dataclass(frozen=True)
class WeakScaling:
    """The time of a training step alone and in the cluster.

    Attributes:
        model: Name of the model.
        parameters: Number of its parameters.
        compute_seconds: A step of one rank alone, on a core of its own.
        step_seconds: A step of all ranks.
    """

    model: str
    parameters: int
    compute_seconds: float
    step_seconds: float


def read_measurements(path: str | Path) -> list[Measurement]:
    """Returns the all-reduces in a file that `fastnet bench` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or it has another format.
    """
    with _document(path) as document:
        # The others are those of other libraries, or were chosen by a strategy.
        return [
            _measurement(entry, document)
            for entry in document["all_reduce"]
            if entry["algorithm"] in ALGORITHMS
        ]


def read_weak_scaling(path: str | Path) -> WeakScaling | None:
    """Returns the training steps in a file that `fastnet bench` wrote, if any.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or it has another format.
    """
    with _document(path) as document:
        entry = document.get("weak_scaling")
        if entry is None:
            return None
        return WeakScaling(
            model=str(entry["model"]),
            parameters=int(entry["parameters"]),
            # All ranks computed at the same time.
            compute_seconds=entry["compute_seconds"]
            / _topology(document).ranks_per_core,
            step_seconds=float(entry["step_seconds"]),
        )


def as_text(document: dict[str, Any]) -> str:
    """Returns results as a table.

    Args:
        document: The results.
    """
    head = (
        f"{document['ranks']} ranks on {count(document['hosts'], 'host')}, transport "
        f"{document['transport']}, {document['wire_dtype']} on the wire; milliseconds, "
        f"median of {document['rounds']} rounds, * is the fastest"
    )
    by_size: dict[int, dict[str, float]] = {}
    for row in document["all_reduce"]:
        by_size.setdefault(row["bytes"], {})[_name(row)] = row["seconds"]
    columns = list(dict.fromkeys(name for found in by_size.values() for name in found))
    rows = [["size", *columns, "best/ring"]]
    for nbytes, found in by_size.items():
        best = min(found.values())
        cells = [
            f"{found[name] * 1e3:.2f}{'*' if found[name] == best else ' '}"
            if name in found
            else "- "
            for name in columns
        ]
        rows.append([size_text(nbytes), *cells, f"{best / found['ring']:.2f}"])
    lines = [head, *table(rows, left=1)]
    scaling = document.get("weak_scaling")
    if scaling:
        side = scaling["image_size"]
        lines += [
            "",
            f"{scaling['model']}, {scaling['parameters']:,} parameters, "
            f"{scaling['batch_per_replica']} images of {side}x{side} per replica:",
            f"{scaling['compute_seconds'] * 1e3:.1f} ms a step alone, "
            f"{scaling['step_seconds'] * 1e3:.1f} ms in the cluster, "
            f"efficiency {scaling['efficiency']:.0%}",
        ]
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    algorithm = row["algorithm"]
    if algorithm not in ("torus", "gather"):
        return algorithm
    return "{} {}x{}".format(algorithm, *row["grid"])


@contextlib.contextmanager
def _document(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yields a file's content. Errors inside the context name the file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f'no JSON object with "format": {FORMAT}')
        yield document
    except OSError as error:
        raise ValueError(
            f"A bench file must be readable. Received: {path} ({error.strerror}). "
            "Write one with `fastnet bench`."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        missing = isinstance(error, KeyError)
        what = f"{error.args[0]!r} is missing" if missing else error
        raise ValueError(
            f"A bench file must be what `fastnet bench` writes, format {FORMAT}. "
            f"Received: {path} ({what}). Run this version of `fastnet bench` again."
        ) from error


def _topology(document: dict[str, Any]) -> Topology:
    return Topology(
        hosts=int(document["hosts"]),
        ranks_per_host=int(document["ranks_per_host"]),
        cores=int(document["cores_per_host"]),
    )


def _measurement(entry: dict[str, Any], document: dict[str, Any]) -> Measurement:
    topology = _topology(document)
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
