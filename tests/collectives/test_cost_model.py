"""The cost of an all-reduce against counts made by hand, message by message."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.collectives.cost_model import (
    ALGORITHMS,
    Topology,
    UnitCosts,
    Work,
    all_reduce_seconds,
    cheapest_algorithm,
    cheapest_grid,
    work_of,
)
from keras_fastnet.collectives.grid import Grid, grids_of

ONE_HOST = Topology(hosts=1, ranks_per_host=12)


@st.composite
def clusters(draw):
    """A topology, a grid of all its ranks, and a vector's bytes."""
    topology = Topology(
        draw(st.integers(1, 12)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    )
    grid = draw(st.sampled_from(grids_of(topology.ranks)))
    return topology, grid, draw(st.floats(1.0, 1e10))


@pytest.mark.parametrize(
    ("algorithm", "grid", "rounds", "messages", "sent", "copied", "collectives"),
    [
        # A ring of 12 passes 1/12 of the vector on, 11 times to reduce and 11 times
        # to gather.
        ("ring", Grid(3, 4), 22, 22, 2200, 0, 1),
        # Quarters to 3 others at once; a ring of 3 with a quarter (300), 4 times 100;
        # quarters round the row, 3 times. The result is copied three times.
        ("torus", Grid(3, 4), 1 + 4 + 3, 3 + 4 + 3, 900 + 400 + 900, 3600, 3),
        # The whole vector to 3 at once, then to 2 others.
        ("gather", Grid(3, 4), 2, 5, 5 * 1200, 3 * 1200 * (4 + 3), 2),
    ],
)
def test_work_on_one_host(algorithm, grid, rounds, messages, sent, copied, collectives):
    work = work_of(algorithm, grid, ONE_HOST, 1200)
    expected = Work(rounds, messages, sent, 0, 0, 0, copied, collectives)
    assert dataclasses.astuple(work) == pytest.approx(dataclasses.astuple(expected))


@pytest.mark.parametrize(
    ("algorithm", "grid", "cards", "expected"),
    # Three hosts with four ranks each, 1,200 bytes.
    [
        # Every round waits for the message that crosses the network.
        ("ring", Grid(3, 4), 1, Work(0, 0, 0, 22, 22, 2200, 0, 1)),
        # Rows stay on a host. Of each column 400 bytes cross, two columns a card.
        ("torus", Grid(3, 4), 2, Work(4, 6, 1800, 4, 4, 2 * 400, 3600, 3)),
        # Two columns: each a ring of six with half of the vector, in sixths.
        ("torus", Grid(6, 2), 1, Work(2, 2, 1200, 10, 10, 2 * 1000, 3600, 3)),
        # Rows of six span hosts: all four ranks of a host send 5/6, twice.
        ("torus", Grid(2, 6), 1, Work(0, 0, 0, 1 + 2 + 5, 12, 4 * 2200, 3600, 3)),
        ("gather", Grid(3, 4), 1, Work(1, 3, 3600, 1, 2, 4 * 2400, 25200, 2)),
    ],
)
def test_work_on_three_hosts(algorithm, grid, cards, expected):
    work = work_of(algorithm, grid, Topology(3, 4, cards), 1200)
    assert dataclasses.astuple(work) == pytest.approx(dataclasses.astuple(expected))


@given(clusters(), st.sampled_from(ALGORITHMS))
def test_no_algorithm_sends_fewer_bytes_than_the_lower_bound(cluster, algorithm):
    topology, grid, nbytes = cluster
    work = work_of(algorithm, grid, topology, nbytes)
    ranks = topology.ranks
    # Patarasuk and Yuan 2009; a gather replicates instead.
    least = 2 * nbytes * (ranks - 1) / ranks
    if algorithm == "gather":
        least = nbytes * (grid.rows - 1 + grid.columns - 1)
    assert work.host_bytes + work.network_bytes >= least * (1 - 1e-9)
    # Each message at most doubles what a rank knows.
    messages = work.host_messages + work.network_messages
    assert messages >= math.ceil(math.log2(ranks))
    rounds = work.host_rounds + work.network_rounds
    assert (ranks > 1) <= rounds <= messages


def test_shared_cores_slow_down_all_but_waiting():
    costs = UnitCosts(1e-5, 2e-5, 1e-9, 0, 0, 0, 0, 3e-5)
    # A ring of four: 6 rounds of one message, 1.5 vectors, one operation. Ranks that
    # share a core compute while others wait.
    wait, compute = 6 * 1e-5, 6 * 2e-5 + 1.5e6 * 1e-9 + 3e-5
    for cores, longer in ((None, 1), (4, 1), (3, 4 / 3), (2, 2)):
        seconds = all_reduce_seconds(
            "ring", Grid(2, 2), Topology(1, 4, cores=cores), costs, 1e6
        )
        assert seconds == pytest.approx(wait + longer * compute)


def test_buckets_add_up():
    topology, grid = Topology(1, 4), Grid(2, 2)
    for algorithm in ALGORITHMS:
        buckets = [work_of(algorithm, grid, topology, n) for n in (500, 500, 200)]
        expected = buckets[0] + buckets[1] + buckets[2]
        found = work_of(algorithm, grid, topology, 1200, buckets=3)
        assert dataclasses.astuple(found) == pytest.approx(
            dataclasses.astuple(expected)
        )


def test_cheapest_algorithm_by_dominant_cost():
    free = UnitCosts(0, 0, 0, 0, 0, 0, 0, 0)
    topology = Topology(1, 16)
    waiting = dataclasses.replace(free, host_round=1.0)
    # A gather takes one round.
    assert cheapest_algorithm(Grid(1, 16), topology, waiting, 100) == "gather"
    assert cheapest_grid(topology, waiting, 100) in (Grid(1, 16), Grid(16, 1))
    sending = dataclasses.replace(free, host_message=1.0)
    # A gather on 4x4 takes 6 messages, 8 on 2x8 and 8x2, 15 on 1x16 and 16x1.
    assert cheapest_grid(topology, sending, 100) == Grid(4, 4)
    assert cheapest_algorithm(Grid(4, 4), topology, sending, 100) == "gather"
    moving = dataclasses.replace(free, host_byte=1.0, copied_byte=1.0)
    assert cheapest_algorithm(Grid(4, 4), topology, moving, 100) == "ring"
    among = ("torus", "gather")
    assert cheapest_algorithm(Grid(4, 4), topology, moving, 100, among) == "torus"
    starting = dataclasses.replace(free, collective=1.0)
    assert cheapest_algorithm(Grid(4, 4), topology, starting, 100) == "ring"


def test_hosts_form_rows():
    costs = UnitCosts(1, 1, 1, 1, 1, 1, 1, 1)
    assert cheapest_grid(Topology(1, 1), costs, 100) == Grid(1, 1)
    assert cheapest_grid(Topology(3, 4), costs, 100) == Grid(3, 4)
    sending = UnitCosts(0, 0, 0, 0, 1, 0, 0, 0)
    assert cheapest_grid(Topology(16, 1), sending, 100) == Grid(4, 4)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["a"], Topology(1, 1)),
        (["a", "b", "a", "b"], Topology(2, 2)),
        # Unequal hosts: no ranks are taken to share one.
        (["a", "a", "b"], Topology(3, 1)),
    ],
)
def test_topology_of_hosts(hosts, expected):
    assert Topology.of(hosts) == expected
    assert expected.ranks == len(hosts)
