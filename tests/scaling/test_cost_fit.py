"""Unit costs fitted to timed all-reduces, and the files that these are read from."""

import dataclasses
import functools

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fastnet.collectives.cost_model import Topology, UnitCosts
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.scaling.bench_results import (
    Measurement,
    WeakScaling,
    read_measurements,
    read_weak_scaling,
)
from keras_fastnet.scaling.cost_fit import _non_negative_least_squares, fit_costs

SIZES = (1e3, 3e4, 1e6, 3e7, 1e9)


START = 7e-4
"""Cost of starting a collective."""


def ring_seconds(ranks, nbytes, near, start=START):
    """2 (N - 1) times a chunk from neighbour to neighbour."""
    round_, message, byte = near
    start = start if ranks > 1 else 0
    return start + 2 * (ranks - 1) * (round_ + message + nbytes / ranks * byte)


def exchange_seconds(ranks, nbytes, near, start):
    """One vector to every other, all at once."""
    round_, message, byte = near
    start = start + round_ if ranks > 1 else 0
    return start + (ranks - 1) * (message + nbytes * byte)


def torus_seconds(rows, columns, nbytes, row, column, copied, start=START):
    """An exchange of chunks, a ring along the column, a gather around the row."""
    chunk = nbytes / columns
    return (
        exchange_seconds(columns, chunk, row, start)
        + ring_seconds(rows, chunk, column, start)
        + start
        + (columns - 1) * (row[0] + row[1] + chunk * row[2])
        + 3 * nbytes * copied
    )


def gather_seconds(rows, columns, nbytes, row, column, copied, start=START):
    """Exchanges of whole vectors; each is sent, received and read by the sum."""
    copies = sum(3 * size for size in (rows, columns) if size > 1)
    return (
        exchange_seconds(columns, nbytes, row, start)
        + exchange_seconds(rows, nbytes, column, start)
        + copies * nbytes * copied
    )


def costs_of(near, far, copied):
    return UnitCosts(*near, *far, copied, START)


def timed(topology, grids, near, far, copied):
    """Measurements by the formulas of a textbook, columns crossing to `far`."""
    made = []
    for nbytes in SIZES:
        ring = ring_seconds(topology.ranks, nbytes, far)
        made.append(("ring", Grid(1, topology.ranks), nbytes, ring))
        for rows, columns in grids:
            shape = (rows, columns, nbytes, near, far, copied)
            grid = Grid(rows, columns)
            made.append(("torus", grid, nbytes, torus_seconds(*shape)))
            made.append(("gather", grid, nbytes, gather_seconds(*shape)))
    return [
        Measurement(algorithm, grid, topology, nbytes, seconds)
        for algorithm, grid, nbytes, seconds in made
    ]


def on_one_host(near, copied):
    return timed(Topology(1, 12), [(6, 2), (3, 4)], near, near, copied)


def on_hosts(near, far, copied, hosts=3, ranks_per_host=4):
    """On several hosts with a card for each rank."""
    topology = Topology(hosts, ranks_per_host, cards=ranks_per_host)
    return timed(topology, [(hosts, ranks_per_host)], near, far, copied)


def starts(measurement):
    """Seconds for starting its collectives."""
    return START * {"ring": 1, "torus": 3, "gather": 2}[measurement.algorithm]


STARTS = st.floats(1e-6, 1e-3)
BYTES = st.floats(1e-10, 1e-8)
LINKS = st.tuples(STARTS, STARTS, BYTES)


@settings(deadline=None)
@given(LINKS, LINKS, BYTES)
def test_host_and_network_costs_are_distinguished(near, far, copied):
    fitted = fit_costs(on_one_host(near, copied) + on_hosts(near, far, copied))
    expected = costs_of(near, far, copied)
    assert dataclasses.astuple(fitted) == pytest.approx(
        dataclasses.astuple(expected), rel=1e-2
    )


def test_costs_are_those_of_unshared_cores():
    near = (1e-4, 2e-4, 1e-9)
    # Twelve ranks on eight cores take half as long again, but for waiting.
    shared = Topology(1, 12, cores=8)
    waits = on_one_host((1e-4, 0.0, 0.0), 0.0)
    measurements = [
        dataclasses.replace(
            m, seconds=m.seconds * 1.5 - 0.5 * (w.seconds - starts(m)), topology=shared
        )
        for m, w in zip(on_one_host(near, 1e-10), waits, strict=True)
    ]
    assert dataclasses.astuple(fit_costs(measurements)) == pytest.approx(
        dataclasses.astuple(costs_of(near, near, 1e-10))
    )


# The first example imports parts of SciPy.
@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_non_negative_least_squares_against_scipy(columns, seed):
    numbers = np.random.default_rng(seed)
    rows = numbers.normal(size=(columns + 3, columns)) + numbers.uniform(0, 1)
    expected, _ = scipy.optimize.nnls(rows, np.ones(len(rows)))
    np.testing.assert_allclose(
        _non_negative_least_squares(rows), expected, rtol=1e-6, atol=1e-8
    )


def test_too_similar_measurements_raise():
    one = on_one_host((1e-4, 2e-4, 1e-9), 1e-10)
    rings_of_one_size = [m for m in one if m.algorithm == "ring"][:1] * 5
    with pytest.raises(ValueError, match=r"Received: 5 .*host_messages, host_bytes"):
        fit_costs(rings_of_one_size)
    with pytest.raises(ValueError, match=r"Received: 0 measurements with no work"):
        fit_costs([])
    alone = Measurement("ring", Grid(1, 1), Topology(1, 1), 100.0, 1e-6)
    with pytest.raises(ValueError, match="with no work"):
        fit_costs([alone, alone])


DOCUMENT = {
    "format": 1,
    "command": "fastnet bench",
    "date": "2026-11-21",
    "versions": {"tensorflow": "2.21.0"},
    "transport": "tensorflow",
    "ranks": 4,
    "hosts": 1,
    "ranks_per_host": 4,
    "wire_dtype": "float32",
    "bucket_bytes": 16_777_216,
    "cores_per_host": 2,
    "all_reduce": [
        {"algorithm": "ring", "grid": [1, 4], "bytes": 4096, "seconds": 0.0049},
        {"algorithm": "torus", "grid": [2, 2], "bytes": 4096, "seconds": 0.005},
    ],
    "weak_scaling": {
        "model": "ResNet50",
        "parameters": 25636712,
        "batch_per_replica": 8,
        "image_size": 64,
        "compute_seconds": 0.2,
        "step_seconds": 0.6,
        "efficiency": 0.33,
    },
}


@pytest.fixture
def written(bench_file):
    """Writes the document with some entries changed, and returns its path."""
    return functools.partial(bench_file, DOCUMENT)


def test_file_is_read(written):
    first, second = read_measurements(written())
    assert first == Measurement(
        "ring", Grid(1, 4), Topology(1, 4, cores=2), 4096.0, 0.0049
    )
    assert (second.algorithm, second.grid) == ("torus", Grid(2, 2))
    # Four ranks computed on two cores at the same time.
    assert read_weak_scaling(written()) == WeakScaling("ResNet50", 25636712, 0.1, 0.6)
    assert read_weak_scaling(written(weak_scaling=None)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, '"format": 1'),
        ({"all_reduce": [{"algorithm": "ring"}]}, "'grid' is missing"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "grid": [3, 2]}]}, "grid 3x2"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "seconds": -1}]}, "not above 0"),
    ],
)
def test_malformed_files_raise(written, changes, message):
    path = written(**changes)
    with pytest.raises(ValueError, match="must be what") as refusal:
        read_measurements(path)
    assert f"Received: {path} (" in str(refusal.value)
    assert message in str(refusal.value)


def test_bytes_and_buckets_are_those_that_were_sent(written):
    entries = [{**DOCUMENT["all_reduce"][0], "bytes": n} for n in (1000, 1001, 4000)]
    changes = {"all_reduce": entries, "bucket_bytes": 1000}
    assert [m.buckets for m in read_measurements(written(**changes))] == [1, 2, 4]
    halves = read_measurements(written(**changes, wire_dtype="bfloat16"))
    assert [(m.nbytes, m.buckets) for m in halves] == [(500, 1), (500.5, 1), (2000, 2)]


def test_unreadable_files_raise(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_measurements(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"\xff{")
    with pytest.raises(ValueError, match="must be what"):
        read_measurements(broken)
