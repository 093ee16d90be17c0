"""The results of `fastnet bench`: their file format, reading, writing and the table."""

import contextlib
import dataclasses
import json
import math
import os
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
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.bench_options import size_text
from keras_fastnet.text import count, table

FORMAT = 1
"""The version of the files that `fastnet bench` writes."""

TENSORFLOW_ITSELF = "tensorflow"
MPI_ITSELF = "MPI_Allreduce"
OVER_GRPC = "auto, gRPC"
"""The algorithm that a strategy over MPI would choose over gRPC."""
FROM_PYTHON = "auto, Python"
"""The algorithm that a strategy over MPI chooses, called without TensorFlow."""

# The all-reduces of other libraries, and those whose algorithm a strategy chose.
_NOT_MODELLED = (TENSORFLOW_ITSELF, MPI_ITSELF, "auto", OVER_GRPC, FROM_PYTHON)
_RING = "ring"


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


def check_output(output: str) -> None:
    """Checks, before time is spent on measuring, that a file can be written.

    Args:
        output: The file.

    Raises:
        UsageError: If it cannot be written.
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


def write(document: dict[str, Any], output: str) -> None:
    """Writes results to a file.

    Args:
        document: The results.
        output: The file.
    """
    text = json.dumps(document, indent=1)
    Path(output).write_text(f"{text}\n", encoding="utf-8")


def read_measurements(path: str | Path) -> list[Measurement]:
    """Returns the all-reduces in a file that `fastnet bench` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or it has another format.
    """
    with _document(path) as document:
        topology = _topology(document)
        return [
            _measurement(entry, topology, document)
            for entry in document["all_reduce"]
            if entry["algorithm"] not in _NOT_MODELLED
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
            parameters=_positive_integer(entry, "parameters"),
            # All ranks computed at the same time.
            compute_seconds=_positive(entry, "compute_seconds")
            / _topology(document).ranks_per_core,
            step_seconds=_positive(entry, "step_seconds"),
        )


def as_text(document: dict[str, Any]) -> str:
    """Returns results as a table.

    Args:
        document: The results.
    """
    lines = [
        f"{document['ranks']} ranks on {count(document['hosts'], 'host')}, transport "
        f"{document['transport']}, {document['wire_dtype']} on the wire; milliseconds, "
        f"median of {document['rounds']} rounds, * is the fastest"
    ]
    columns = list(dict.fromkeys(_name(row) for row in document["all_reduce"]))
    rows = [["size", *columns, "best/ring"]]
    for nbytes in dict.fromkeys(row["bytes"] for row in document["all_reduce"]):
        found = {
            _name(row): row["seconds"]
            for row in document["all_reduce"]
            if row["bytes"] == nbytes
        }
        best = min(found.values())
        cells = [_milliseconds(found.get(name), best) for name in columns]
        rows.append([size_text(nbytes), *cells, f"{best / found[_RING]:.2f}"])
    lines += table(rows, left=1)
    scaling = document.get("weak_scaling")
    if scaling:
        lines += ["", _training(scaling)]
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    algorithm = row["algorithm"]
    if algorithm not in ("torus", "gather"):
        return algorithm
    return "{} {}x{}".format(algorithm, *row["grid"])


def _milliseconds(seconds: float | None, best: float) -> str:
    if seconds is None:
        return "- "
    return f"{seconds * 1e3:.2f}{'*' if seconds == best else ' '}"


def _training(scaling: dict[str, Any]) -> str:
    side = scaling["image_size"]
    return (
        f"{scaling['model']}, {scaling['parameters']:,} parameters, "
        f"{scaling['batch_per_replica']} images of {side}x{side} per replica:\n"
        f"{scaling['compute_seconds'] * 1e3:.1f} ms a step alone, "
        f"{scaling['step_seconds'] * 1e3:.1f} ms in the cluster, "
        f"efficiency {scaling['efficiency']:.0%}"
    )


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
        raise _malformed(path, error) from error


def _malformed(path: str | Path, error: Exception) -> ValueError:
    what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
    return ValueError(
        f"A bench file must be what `fastnet bench` writes, format {FORMAT}. "
        f"Received: {path} ({what}). Run this version of `fastnet bench` again."
    )


def _topology(document: dict[str, Any]) -> Topology:
    topology = Topology(
        hosts=_positive_integer(document, "hosts"),
        ranks_per_host=_positive_integer(document, "ranks_per_host"),
        cores=_positive_integer(document, "cores_per_host"),
    )
    if topology.ranks != document["ranks"]:
        raise ValueError('"ranks" is not "hosts" times "ranks_per_host"')
    return topology


def _measurement(
    entry: dict, topology: Topology, document: dict[str, Any]
) -> Measurement:
    if entry["algorithm"] not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {entry['algorithm']!r}")
    algorithm, grid = entry["algorithm"], Grid(*entry["grid"])
    if document["transport"] == "mpi" and algorithm == "ring":
        # A flat sum over MPI is an exchange among all, not a ring.
        algorithm, grid = "torus", Grid(1, grid.size)
    if grid.size != topology.ranks:
        raise ValueError(f"grid {grid} is not one of {topology.ranks} ranks")
    # Sizes are those of `float32` vectors.
    travels = WIRE_BYTES[document["wire_dtype"]] / WIRE_BYTES["float32"]
    nbytes = _positive(entry, "bytes")
    return Measurement(
        algorithm=algorithm,
        grid=grid,
        topology=topology,
        nbytes=nbytes * travels,
        seconds=_positive(entry, "seconds"),
        buckets=math.ceil(nbytes / _positive(document, "bucket_bytes")),
    )


def _positive(entry: dict, key: str) -> float:
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'"{key}" is not a number but {value!r}')
    if not 0 < value < float("inf"):
        raise ValueError(f'"{key}" is {value!r}, not above 0')
    return float(value)


def _positive_integer(entry: dict, key: str) -> int:
    value = _positive(entry, key)
    if value != int(value):
        raise ValueError(f'"{key}" is {value!r}, not an integer')
    return int(value)
