"""Workers that are not who they should be."""

import json

import pytest

from keras_fastnet.cluster import ports
from tests.rendezvous_worker import Worker, connect, hello, outcomes, say

pytest_plugins = ["tests.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_versions_differ(addresses, soon):
    workers = [
        Worker(addresses[:2], 0, facts={"keras": "3.15", "tensorflow": "2.21"}),
        Worker(addresses[:2], 1, facts={"keras": "3.15", "tensorflow": "2.18"}),
    ]
    for text in outcomes(*workers):
        assert "for tensorflow: '2.21' on rank 0, '2.18' on rank 1" in text
    assert max(worker.seconds for worker in workers) < 5


def test_clusters_differ_in_an_address(addresses, soon):
    other = [addresses[0], addresses[1], addresses[3]]
    workers = [Worker(addresses[:3], 0), Worker(other, 1), Worker(addresses[:3], 2)]
    for text in outcomes(*workers):
        assert f"'{addresses[2]}' on rank 0, '{addresses[3]}' on rank 1" in text


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_numbers_of_workers_differ(addresses, soon, sizes):
    workers = [Worker(addresses[: sizes[rank]], rank) for rank in (0, 1)]
    for text in outcomes(*workers):
        assert f"'{sizes[0]} workers' on rank 0, '{sizes[1]} workers' on rank 1" in text
    assert max(worker.seconds for worker in workers) < 5


def test_rank_beyond_the_cluster_of_rank_0(addresses, soon):
    workers = [Worker(addresses[:2], 0), Worker(addresses[:3], 2)]
    for text in outcomes(*workers):
        assert "'2 workers' on rank 0, '3 workers' on rank 2" in text


def test_those_who_come_after_the_objection_hear_it(addresses):
    workers = [
        Worker(addresses[:3], 0),
        Worker(addresses[:3], 1, facts={}),
        Worker(addresses[:3], 2, after=0.3),
    ]
    assert all("for tensorflow" in text for text in outcomes(*workers))


def test_same_index_twice_on_two_hosts(addresses, soon):
    """The second one cannot be started here: its port is taken."""
    leader = Worker(addresses[:3], 0)
    worker = Worker(addresses[:3], 1)
    with connect(addresses[0]) as twin:
        say(twin, hello(addresses[:3], 1))
        # A welcome comes before, where the twin was faster.
        heard = next(line for line in twin.makefile() if "error" in line)
    for text in [heard, *outcomes(leader, worker)]:
        assert "two processes with rank 1" in text


def test_rank_0_twice_on_two_hosts(addresses, soon):
    leader, worker = Worker(addresses[:3], 0), Worker(addresses[:3], 1)
    with connect(addresses[0]) as twin:
        say(twin, {"call": 0, "leader": "twin"})
        heard = json.loads(twin.makefile().readline())["error"]
    for text in [heard, *outcomes(leader, worker)]:
        assert "two processes with rank 0" in text


def test_rank_0_whose_address_leads_to_another_rank_0(addresses, soon, monkeypatch):
    """As on a second host, this one's port is not that of its address."""
    first = Worker(addresses[:2], 0)
    connect(addresses[0]).close()
    listen = ports.listening_socket
    other_port = int(addresses[3].split(":")[1])
    monkeypatch.setattr(ports, "listening_socket", lambda port: listen(other_port))
    second = Worker(addresses[:2], 0)
    for text in outcomes(first, second):
        assert "two processes with rank 0" in text
    assert max(first.seconds, second.seconds) < 5


def test_index_twice_on_one_host(addresses, soon):
    workers = [Worker(addresses[:3], 0), Worker(addresses[:3], 0, after=0.3)]
    assert "must be able to listen" in workers[1].outcome()
    assert workers[1].seconds < 2
    late = [Worker(addresses[:3], rank) for rank in (1, 2)]
    assert outcomes(workers[0], *late) == [7] * 3


def test_address_that_leads_to_another_rank(soon, monkeypatch):
    """Ranks 1 and 2 have each other's address."""
    listen = ports.listening_socket
    with ports.reserved_ports(3) as (zero, one, two):
        swapped = {zero: zero, one: two, two: one}
        monkeypatch.setattr(
            ports, "listening_socket", lambda port: listen(swapped[port])
        )
        addresses = [f"127.0.0.1:{port}" for port in (zero, one, two)]
        workers = [Worker(addresses, rank) for rank in range(3)]
        for text in outcomes(*workers):
            assert "which leads to rank" in text


def test_follower_that_cannot_be_reached(addresses, soon, monkeypatch):
    listen = ports.listening_socket
    own = [int(address.split(":")[1]) for address in addresses]
    monkeypatch.setattr(
        ports,
        "listening_socket",
        lambda p: listen(own[3] if p == own[1] else p),
    )
    workers = [Worker(addresses[:2], rank, timeout=0.6) for rank in range(2)]
    for text in outcomes(*workers):
        assert f"{addresses[1]} for rank 1, which reached rank 0 but" in text
        assert "refused" in text
    assert max(worker.seconds for worker in workers) < 5


def test_another_program_at_the_address_of_a_follower(addresses, soon, monkeypatch):
    listen = ports.listening_socket
    own = [int(address.split(":")[1]) for address in addresses]
    with listen(own[1]):
        monkeypatch.setattr(
            ports,
            "listening_socket",
            lambda p: listen(own[3] if p == own[1] else p),
        )
        workers = [Worker(addresses[:2], rank, timeout=0.6) for rank in range(2)]
        for text in outcomes(*workers):
            assert "it accepts connections, but does not answer" in text
