"""Prices that are learned from timed all-reduces, and the files they are read from."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fastnet.collectives.cost_model import Prices, Topology
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.price_fit import (
    Measurement,
    WeakScaling,
    _non_negative_least_squares,
    fit_prices,
    read_measurements,
    read_weak_scaling,
)

SIZES = (1e3, 3e4, 1e6, 3e7, 1e9)


def ring_seconds(ranks, nbytes, message, byte):
    return 2 * (ranks - 1) * message + 2 * (ranks - 1) / ranks * nbytes * byte


def torus_seconds(rows, columns, nbytes, row, column, copied):
    """Reduce-scatter and all-gather along a row, a ring along a column, 3 copies."""
    return (
        2 * (columns - 1) * (row[0] + nbytes / columns * row[1])
        + 2 * (rows - 1) * (column[0] + nbytes / columns / rows * column[1])
        + 3 * nbytes * copied
    )


def on_one_host(prices, ranks=12, cores=None, factor=1.0):
    """Timed by the formulas of a textbook, on one host of `ranks` ranks."""
    topology = Topology(1, ranks)
    near = (prices.host_message, prices.host_byte)
    made = []
    for nbytes in SIZES:
        ring = ring_seconds(ranks, nbytes, *near)
        made.append(("ring", Grid(1, ranks), nbytes, ring))
        for rows, columns in ((ranks // 2, 2), (ranks // 3, 3)):
            torus = torus_seconds(rows, columns, nbytes, near, near, prices.copied_byte)
            made.append(("torus", Grid(rows, columns), nbytes, torus))
    return [
        Measurement(algorithm, grid, topology, nbytes, seconds * factor, cores)
        for algorithm, grid, nbytes, seconds in made
    ]


def on_hosts(prices, hosts, ranks_per_host):
    """The same on several hosts with a card for each rank."""
    topology = Topology(hosts, ranks_per_host, cards=ranks_per_host)
    far = (prices.network_message, prices.network_byte)
    near = (prices.host_message, prices.host_byte)
    made = []
    for nbytes in SIZES:
        ring = ring_seconds(topology.ranks, nbytes, *far)
        made.append(("ring", Grid(1, topology.ranks), nbytes, ring))
        torus = torus_seconds(
            hosts, ranks_per_host, nbytes, near, far, prices.copied_byte
        )
        made.append(("torus", Grid(hosts, ranks_per_host), nbytes, torus))
    return [
        Measurement(algorithm, grid, topology, nbytes, seconds, None)
        for algorithm, grid, nbytes, seconds in made
    ]


MESSAGES = st.floats(1e-6, 1e-3)
BYTES = st.floats(1e-11, 1e-8)


@given(MESSAGES, BYTES, BYTES)
def test_exact_measurements_give_the_prices_back(message, byte, copied):
    prices = Prices(message, byte, message, byte, copied)
    fitted = fit_prices(on_one_host(prices))
    assert dataclasses.astuple(fitted) == pytest.approx(
        dataclasses.astuple(prices), rel=1e-4
    )


@settings(max_examples=30)
@given(MESSAGES, BYTES, BYTES, st.integers(0, 2**32 - 1))
def test_noise_does_not_lead_astray(message, byte, copied, seed):
    prices = Prices(message, byte, message, byte, copied)
    noise = np.random.default_rng(seed)
    measurements = [
        dataclasses.replace(m, seconds=m.seconds * noise.uniform(0.97, 1.03))
        for m in on_one_host(prices) * 20
    ]
    fitted = fit_prices(measurements)
    assert fitted.host_message == pytest.approx(message, rel=0.03)
    # Bytes and copies come together, so that only their sum is sure.
    for rows, columns in ((2, 6), (12, 1)):
        near = (fitted.host_message, fitted.host_byte)
        seconds = torus_seconds(rows, columns, 1e8, near, near, fitted.copied_byte)
        known = (message, byte)
        expected = torus_seconds(rows, columns, 1e8, known, known, copied)
        assert seconds == pytest.approx(expected, rel=0.1)


@given(MESSAGES, BYTES, MESSAGES, BYTES, BYTES)
def test_host_and_network_are_told_apart(near, near_byte, far, far_byte, copied):
    prices = Prices(near, near_byte, far, far_byte, copied)
    fitted = fit_prices(on_one_host(prices) + on_hosts(prices, 3, 4))
    assert dataclasses.astuple(fitted) == pytest.approx(
        dataclasses.astuple(prices), rel=1e-3
    )


def test_where_all_crossed_the_network_a_host_costs_the_same():
    prices = Prices(9.0, 9.0, 1e-4, 1e-9, 0.0)
    ring_only = [m for m in on_hosts(prices, 4, 1) if m.algorithm == "ring"]
    fitted = fit_prices(ring_only)
    assert dataclasses.astuple(fitted) == pytest.approx((1e-4, 1e-9, 1e-4, 1e-9, 0))


def test_shared_cores_are_taken_out():
    prices = Prices(1e-4, 1e-9, 1e-4, 1e-9, 1e-10)
    # Twelve ranks on eight cores take half as long again.
    fitted = fit_prices(on_one_host(prices, cores=8, factor=1.5))
    assert dataclasses.astuple(fitted) == pytest.approx(dataclasses.astuple(prices))


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_non_negative_least_squares_against_scipy(columns, seed):
    numbers = np.random.default_rng(seed)
    rows = numbers.normal(size=(columns + 3, columns)) + numbers.uniform(0, 1)
    expected, _ = scipy.optimize.nnls(rows, np.ones(len(rows)))
    np.testing.assert_allclose(
        _non_negative_least_squares(rows), expected, rtol=1e-6, atol=1e-8
    )


def test_no_price_is_negative():
    # The torus takes less than its messages and bytes alone.
    prices = Prices(1e-4, 1e-9, 0, 0, -1e-10)
    fitted = fit_prices(on_one_host(prices))
    assert fitted.copied_byte == 0
    assert min(dataclasses.astuple(fitted)) >= 0


def test_measurements_that_do_not_tell_prices_apart_are_refused():
    one = on_one_host(Prices(1e-4, 1e-9, 0, 0, 1e-10))
    rings_of_one_size = [m for m in one if m.nbytes == SIZES[0]][:1] * 5
    with pytest.raises(ValueError, match=r"Received: 5 .*host_messages, host_bytes"):
        fit_prices(rings_of_one_size)
    with pytest.raises(ValueError, match=r"Received: 0 measurements with no work"):
        fit_prices([])
    alone = Measurement("ring", Grid(1, 1), Topology(1, 1), 100.0, 1e-6, 1)
    with pytest.raises(ValueError, match="with no work"):
        fit_prices([alone, alone])


DOCUMENT = {
    "format": 1,
    "command": "fastnet bench",
    "date": "2026-11-21",
    "versions": {"tensorflow": "2.21.0"},
    "transport": "tensorflow",
    "ranks": 4,
    "hosts": 1,
    "ranks_per_host": 4,
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
def written(tmp_path):
    """Writes a document with some entries changed, and returns its path."""

    def write(**changes):
        path = tmp_path / "bench.json"
        path.write_text(json.dumps({**DOCUMENT, **changes}))
        return path

    return write


def test_file_is_read(written):
    first, second = read_measurements(written())
    assert first == Measurement(
        "ring", Grid(1, 4), Topology(1, 4), 4096.0, 0.0049, cores_per_host=2
    )
    assert (second.algorithm, second.grid) == ("torus", Grid(2, 2))
    assert read_weak_scaling(written()) == WeakScaling("ResNet50", 25636712, 0.2, 0.6)
    assert read_weak_scaling(written(weak_scaling=None)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, '"format": 1'),
        ({"ranks": 5}, '"ranks" is not'),
        ({"hosts": 0}, '"hosts" is 0'),
        ({"cores_per_host": 1.5}, '"cores_per_host" is 1.5'),
        ({"all_reduce": 3}, "int"),
        ({"all_reduce": [{"algorithm": "ring"}]}, "'grid' is missing"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "grid": [3, 2]}]}, "grid 3x2"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "seconds": -1}]}, "not above 0"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "bytes": "x"}]}, "no number"),
        ({"all_reduce": [{**DOCUMENT["all_reduce"][0], "algorithm": "x"}]}, "'x'"),
    ],
)
def test_malformed_files_are_refused(written, changes, message):
    path = written(**changes)
    with pytest.raises(ValueError, match="must be what") as refusal:
        read_measurements(path)
    assert f"Received: {path} (" in str(refusal.value)
    assert message in str(refusal.value)


def test_malformed_weak_scaling_is_refused(written):
    entry = {**DOCUMENT["weak_scaling"], "compute_seconds": None}
    with pytest.raises(ValueError, match="compute_seconds"):
        read_weak_scaling(written(weak_scaling=entry))


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_measurements(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"\xff{")
    with pytest.raises(ValueError, match="must be what"):
        read_measurements(broken)
    broken.write_text("[1]")
    with pytest.raises(ValueError, match="no JSON object"):
        read_measurements(broken)
