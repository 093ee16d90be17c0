"""A machine's prices, learned from all-reduces that were timed on it."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_fastnet.collectives.cost_model import (
    ALGORITHMS,
    WIRE_BYTES,
    Algorithm,
    Topology,
    UnitCosts,
    Work,
    work_of,
)
from keras_fastnet.collectives.grid import Grid

FORMAT = 1
"""The version of the files that `fastnet bench` writes."""

TENSORFLOW_ITSELF = "tensorflow"
MPI_ITSELF = "MPI_Allreduce"
OVER_GRPC = "auto, gRPC"
"""What a strategy over MPI would choose without it."""
FROM_PYTHON = "auto, Python"
"""What a strategy over MPI chooses, called as MPI is: without TensorFlow."""

# The all-reduces of others, and whichever of ours a strategy chose.
_NOT_MODELLED = (TENSORFLOW_ITSELF, MPI_ITSELF, "auto", OVER_GRPC, FROM_PYTHON)
_FIELDS = [field.name for field in dataclasses.fields(Work)]
# A later one that cannot be told apart from earlier ones is counted in with them.
_BY_IMPORTANCE = (
    "host_messages",
    "network_messages",
    "host_bytes",
    "network_bytes",
    "collectives",
    "host_rounds",
    "network_rounds",
    "copied_bytes",
)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One all-reduce that was timed.

    Attributes:
        algorithm: How the sum was computed.
        grid: The grid.
        topology: The ranks' hosts.
        nbytes: Bytes that each rank had to sum.
        seconds: What it took.
        buckets: Vectors that they were sent in.
    """

    algorithm: Algorithm
    grid: Grid
    topology: Topology
    nbytes: float
    seconds: float
    buckets: int = 1


@dataclasses.dataclass(frozen=True)
class WeakScaling:
    """What a training step took alone and in the cluster.

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


def fit_prices(measurements: Sequence[Measurement]) -> UnitCosts:
    """Returns the prices that explain the measurements best.

    It is the least squares of the relative errors, since short sums matter as much
    as long ones, with no price below zero. Prices are those of a rank with a
    processor core of its own.

    What always came along with something else is not told apart from it: where
    every round had one message, the message has the price of both and the round is
    free. Where no measurement crossed the network, everything there costs what it
    costs on a host, and the other way round.

    Args:
        measurements: Of one machine or cluster.

    Raises:
        ValueError: The measurements are of no work, or too much alike to tell the
            price of a message from that of a byte.
    """
    work = np.array([_row(measurement) for measurement in measurements])
    work = work.reshape(-1, len(_FIELDS))
    # Messages and bytes differ by orders of magnitude.
    scale = np.linalg.norm(work, axis=0)
    occurs = [_FIELDS[i] for i in np.flatnonzero(scale)]
    scaled = work / np.where(scale > 0, scale, 1.0)
    kept: list[int] = []
    for name in _BY_IMPORTANCE:
        column = _FIELDS.index(name)
        if np.linalg.matrix_rank(scaled[:, [*kept, column]], tol=1e-6) > len(kept):
            kept.append(column)
        elif not occurs or (name in occurs and name.endswith("bytes")):
            raise ValueError(
                "Measurements must differ enough to tell the price of a message from "
                f"that of a byte. Received: {len(work)} measurements with "
                f"{', '.join(occurs) or 'no work'}. "
                "Time at least two sizes with two algorithms, on two ranks or more."
            )
    fitted = np.zeros(len(_FIELDS))
    fitted[kept] = _non_negative_least_squares(scaled[:, kept]) / scale[kept]
    prices = UnitCosts(*fitted.tolist())
    if not any(name.startswith("network") for name in occurs):
        return dataclasses.replace(
            prices,
            network_round=prices.host_round,
            network_message=prices.host_message,
            network_byte=prices.host_byte,
        )
    if not any(name.startswith("host") for name in occurs):
        return dataclasses.replace(
            prices,
            host_round=prices.network_round,
            host_message=prices.network_message,
            host_byte=prices.network_byte,
        )
    return prices


def read_measurements(path: str | Path) -> list[Measurement]:
    """Returns the all-reduces in a file that `fastnet bench` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: There is no such file, or it is of another format.
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
        ValueError: There is no such file, or it is of another format.
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


def _row(measurement: Measurement) -> list[float]:
    """Returns the work that each second went into, on a core of one's own."""
    work = work_of(
        measurement.algorithm,
        measurement.grid,
        measurement.topology,
        measurement.nbytes,
        measurement.buckets,
    ).on_shared_cores(measurement.topology.ranks_per_core)
    return [amount / measurement.seconds for amount in dataclasses.astuple(work)]


def _non_negative_least_squares(rows: np.ndarray) -> np.ndarray:
    """Returns x >= 0 with rows @ x closest to 1.

    The best x is the unbounded solution over the columns where it is not zero. There
    are at most eight, so each subset is tried.
    """
    ones = np.ones(len(rows))
    best = np.zeros(rows.shape[1])
    least = float(len(rows))
    for size in range(1, rows.shape[1] + 1):
        for subset in map(list, itertools.combinations(range(rows.shape[1]), size)):
            solution = np.linalg.lstsq(rows[:, subset], ones, rcond=None)[0]
            error = float(np.sum((rows[:, subset] @ solution - ones) ** 2))
            if (solution >= 0).all() and error < least:
                least = error
                best = np.zeros(rows.shape[1])
                best[subset] = solution
    return best


@contextlib.contextmanager
def _document(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yields a file's content, and names the file in errors about it."""
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
        f"Received: {path} ({what}). Write it anew with this version."
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
        raise ValueError(f'"{key}" is no number but {value!r}')
    if not 0 < value < float("inf"):
        raise ValueError(f'"{key}" is {value!r}, not above 0')
    return float(value)


def _positive_integer(entry: dict, key: str) -> int:
    value = _positive(entry, key)
    if value != int(value):
        raise ValueError(f'"{key}" is {value!r}, no integer')
    return int(value)
