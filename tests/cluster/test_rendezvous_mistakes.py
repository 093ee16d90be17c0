"""Workers that are described or started wrongly."""

import json

import pytest

from keras_fastnet.cluster import ports
from tests.cluster.rendezvous_worker import (
    Worker,
    accepted_follower,
    connect,
    hello,
    outcomes,
    say,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_different_versions_are_named(addresses, soon):
    workers = [
        Worker(addresses[:2], 0, facts={"keras": "3.15", "tensorflow": "2.21"}),
        Worker(addresses[:2], 1, facts={"keras": "3.15", "tensorflow": "2.18"}),
    ]
    for text in outcomes(*workers):
        assert "for tensorflow: '2.21' on rank 0, '2.18' on rank 1" in text
    assert max(worker.seconds for worker in workers) < 5


def test_different_addresses_are_named(addresses, soon):
    other = [addresses[0], addresses[1], addresses[3]]
    workers = [Worker(addresses[:3], 0), Worker(other, 1), Worker(addresses[:3], 2)]
    for text in outcomes(*workers):
        assert f"'{addresses[2]}' on rank 0, '{addresses[3]}' on rank 1" in text


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_different_numbers_of_workers_are_named(addresses, soon, sizes):
    workers = [Worker(addresses[: sizes[rank]], rank) for rank in (0, 1)]
    for text in outcomes(*workers):
        assert f"'{sizes[0]} workers' on rank 0, '{sizes[1]} workers' on rank 1" in text
    assert max(worker.seconds for worker in workers) < 5


def test_rank_outside_the_cluster_of_rank_0_is_reported(addresses, soon):
    leader = Worker(addresses[:2], 0, timeout=1.0)
    other = Worker(addresses[:3], 2)
    for text in outcomes(leader, other):
        assert "'2 workers' on rank 0, '3 workers' on rank 2" in text
    assert "missing ranks: 1" in leader.outcome()


def test_workers_that_start_after_the_error_report_it(addresses):
    workers = [
        Worker(addresses[:3], 0),
        Worker(addresses[:3], 1, facts={}),
        Worker(addresses[:3], 2, after=0.3),
    ]
    assert all("for tensorflow" in text for text in outcomes(*workers))


def test_same_index_on_two_hosts_is_reported(addresses, soon):
    """On one host the second process could not listen on the port."""
    leader = Worker(addresses[:3], 0, timeout=1.0)
    with (
        accepted_follower(addresses[:3], 1),
        connect(addresses[0]) as second,
        second.makefile() as lines,
    ):
        say(second, hello(addresses[:3], 1))
        heard = lines.readline()
        for text in (heard, leader.outcome()):
            assert "two processes with rank 1" in text
    assert "missing ranks: 2" in leader.outcome()


def test_two_ranks_0_are_reported(addresses, soon):
    leader = Worker(addresses[:3], 0, timeout=1.0)
    worker = Worker(addresses[:3], 1)
    with connect(addresses[0]) as twin, twin.makefile() as lines:
        say(twin, {"call": 0, "id": "twin"})
        heard = json.loads(lines.readline())["error"]
    for text in [heard, *outcomes(leader, worker)]:
        assert "two processes with rank 0" in text
    assert "missing ranks: 2" in leader.outcome()


def test_rank_0_at_the_address_of_another_rank_0_is_reported(
    addresses, soon, monkeypatch
):
    """Listens on another port than its address has, as a process on a second host."""
    first = Worker(addresses[:2], 0, timeout=1.5)
    connect(addresses[0]).close()
    listen = ports.listening_socket
    other_port = int(addresses[3].split(":")[1])
    monkeypatch.setattr(ports, "listening_socket", lambda port: listen(other_port))
    second = Worker(addresses[:2], 0)
    for text in outcomes(first, second):
        assert "two processes with rank 0" in text
    assert max(first.seconds, second.seconds) < 5


def test_same_index_on_one_host_does_not_disturb_the_first(addresses, soon):
    workers = [Worker(addresses[:3], 0), Worker(addresses[:3], 0, after=0.3)]
    assert "must be able to listen" in workers[1].outcome()
    assert workers[1].seconds < 2
    late = [Worker(addresses[:3], rank) for rank in (1, 2)]
    assert outcomes(workers[0], *late) == [7] * 3


def test_swapped_addresses_are_reported(soon, monkeypatch):
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


def test_unreachable_follower_is_reported(addresses, soon, monkeypatch):
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


def test_other_program_at_the_address_of_a_follower_is_reported(
    addresses, soon, monkeypatch
):
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
