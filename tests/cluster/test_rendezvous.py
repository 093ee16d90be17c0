"""Workers meet, on their own ports."""

import contextlib
import os
import socket
import time

import pytest

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import meet
from tests.cluster.rendezvous_worker import (
    FACTS,
    Worker,
    outcomes,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_get_the_proposal_of_rank_0(addresses, size):
    proposals = [[1, "a"], "b", None, 3]
    workers = [
        Worker(addresses[:size], rank, proposal=proposals[rank]) for rank in range(size)
    ]
    assert outcomes(*workers) == [[1, "a"]] * size
    nodes = [f"node{rank}" for rank in range(size)]
    assert [worker.nodes for worker in workers] == [nodes] * size
    assert max(worker.seconds for worker in workers) < 5


def test_24_workers_meet():
    with ports.reserved_ports(24) as reserved:
        addresses = [f"localhost:{port}" for port in reserved]
        workers = [Worker(addresses, rank) for rank in reversed(range(24))]
        assert outcomes(*workers) == [7] * 24


@pytest.mark.parametrize("late", [0, 1, 2])
def test_any_rank_may_start_last(addresses, late):
    workers = [
        Worker(addresses[:3], rank, after=0.2 if rank == late else 0.0)
        for rank in range(3)
    ]
    assert outcomes(*workers) == [7] * 3


def test_workers_can_meet_again_on_the_same_ports(addresses):
    for turn in range(3):
        workers = [Worker(addresses, rank, proposal=turn) for rank in range(4)]
        assert outcomes(*workers) == [turn] * 4


def test_workers_meet_over_ipv6():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    with contextlib.ExitStack() as stack:
        holders = [
            stack.enter_context(socket.socket(socket.AF_INET6)) for _ in range(2)
        ]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(("::1", 0))
            except OSError:
                pytest.skip("no IPv6")
        addresses = [f"[::1]:{holder.getsockname()[1]}" for holder in holders]
        assert outcomes(*(Worker(addresses, rank) for rank in range(2))) == [7] * 2


def test_workers_meet_on_a_machine_without_ipv6(addresses, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert outcomes(*(Worker(addresses[:2], rank) for rank in range(2))) == [7] * 2


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "5", None])
def test_timeout_must_be_positive_and_finite(addresses, timeout):
    with pytest.raises(ValueError, match="`start_timeout` must be a positive"):
        meet(Cluster(addresses, 0), FACTS, 0, timeout, "a")


@pytest.mark.parametrize("rank", [0, 1])
def test_busy_port_raises_and_names_the_port(addresses, soon, rank):
    port = int(addresses[rank].split(":")[1])
    with ports.listening_socket(port):
        worker = Worker(addresses[:2], rank)
        text = worker.outcome()
    assert f"Rank {rank} must be able to listen" in text
    assert f"{addresses[rank]}, Address already in use. Choose" in text
    assert worker.seconds < 2


def test_port_may_become_free_shortly_after_the_start(addresses):
    listener = ports.listening_socket(int(addresses[0].split(":")[1]))
    worker = Worker(addresses[:1], 0)
    time.sleep(0.2)
    listener.close()
    assert worker.outcome() == 7


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on any port")
def test_forbidden_port_raises(soon):
    assert "denied" in Worker(["127.0.0.1:1"], 0).outcome()
