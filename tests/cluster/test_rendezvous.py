"""Workers meet in threads of the test: missing, different or wrongly described ones."""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from keras_fastnet.cluster import ports, rendezvous, rendezvous_messages
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.errors import ClusterError

FACTS = {"tensorflow": "2.21"}
PATIENCE = 240.0  # against hangs only
LONG = 60.0


@pytest.fixture
def addresses():
    with ports.reserved_ports(4) as reserved:
        yield tuple(f"127.0.0.1:{port}" for port in reserved)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shortens the waits after the decision; checks that no thread is left."""
    for name in ("RETRY_SECONDS", "LINGER_SECONDS"):
        monkeypatch.setattr(rendezvous, name, 0.1)
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.02)
    assert set(threading.enumerate()) <= before


class Worker(threading.Thread):
    """Runs `meet`."""

    def __init__(self, addresses, rank, *, facts=FACTS, proposal=7, timeout=LONG):
        super().__init__()
        cluster = Cluster(tuple(addresses), rank)
        self._arguments = (cluster, facts, proposal, timeout, f"node{rank}")
        self.start()

    def run(self):
        try:
            self.result, self.nodes = rendezvous.meet(*self._arguments)
        except ClusterError as error:
            self.result = str(error)

    def outcome(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.result


def outcomes(*workers):
    return [worker.outcome() for worker in workers]


def port_of(address):
    return int(address.rpartition(":")[2])


@contextlib.contextmanager
def connected(address):
    """A connection to a worker, as soon as it listens, and what it sends."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            opened = socket.create_connection(("127.0.0.1", port_of(address)), PATIENCE)
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)
    with opened, opened.makefile() as lines:
        yield opened, lines


def hello(addresses, number, **changes):
    facts = {"workers": list(addresses), **FACTS}
    message = {"rank": number, "id": "x", "facts": facts, "node": "a"}
    message |= {"patience": LONG}
    return json.dumps(message | changes).encode() + b"\n"


@pytest.fixture
def at_other_ports(monkeypatch):
    """Lets workers listen at other ports than their addresses have."""
    listen = ports.listening_socket

    def move(moved):
        monkeypatch.setattr(
            ports, "listening_socket", lambda port: listen(moved.get(port, port))
        )

    return move


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_get_the_proposal_and_all_nodes(addresses, size):
    proposals = [[1, "a"], "b", None, 3]
    workers = [
        Worker(addresses[:size], rank, proposal=proposals[rank])
        for rank in reversed(range(size))
    ]
    assert outcomes(*workers) == [[1, "a"]] * size
    nodes = [f"node{rank}" for rank in range(size)]
    assert [worker.nodes for worker in workers] == [nodes] * size


def test_many_workers_meet_again_on_the_same_ports_with_rank_0_last():
    with ports.reserved_ports(24) as reserved:
        addresses = [f"localhost:{port}" for port in reserved]
        for turn in range(2):
            workers = [Worker(addresses, rank) for rank in range(1, 24)]
            workers.append(Worker(addresses, 0, proposal=turn))
            assert outcomes(*workers) == [turn] * 24


def test_workers_meet_on_a_machine_without_ipv6(addresses, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert outcomes(*(Worker(addresses[:2], rank) for rank in range(2))) == [7] * 2


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "5", None])
def test_timeout_must_be_positive_and_finite(addresses, timeout):
    with pytest.raises(ValueError, match="`start_timeout` must be a positive"):
        rendezvous.meet(Cluster(addresses, 0), FACTS, 0, timeout, "a")


def test_busy_port_is_named(addresses, monkeypatch):
    monkeypatch.setattr(ports, "BUSY_SECONDS", 0.2)
    with ports.listening_socket(port_of(addresses[1])):
        text = Worker(addresses[:2], 1).outcome()
    assert f"{addresses[1]}, Address already in use. Choose" in text


def test_missing_follower_is_named_on_all_ranks_and_logged(
    addresses, monkeypatch, caplog
):
    monkeypatch.setattr(rendezvous, "FIRST_LOG_SECONDS", 0.3)
    with caplog.at_level(logging.WARNING):
        # Rank 0's own time is long: the first worker's counts.
        workers = [Worker(addresses[:3], 1, timeout=3.0), Worker(addresses[:3], 0)]
        for text in outcomes(*workers):
            assert f"missing ranks: 2 ({addresses[2]})." in text
    assert any("Rank 0 waits for" in text for text in caplog.messages)


def test_missing_rank_0_is_named_with_its_address(addresses):
    text = Worker(addresses[:2], 1, timeout=0.3).outcome()
    assert f"must reach rank 0 within 0.3 s. Received at {addresses[0]}" in text
    assert "refused" in text
    for host in ("no-such-host.invalid", "a" * 70 + ".invalid"):
        unknown = [f"{host}:1", addresses[1]]
        assert "must reach rank 0" in Worker(unknown, 1, timeout=0.3).outcome()


MEET = """
import sys
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import meet

rank, *addresses = sys.argv[1:]
meet(Cluster(tuple(addresses), int(rank)), {"tensorflow": "2.21"}, 7, 60.0, "a")
"""


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_worker_is_reported_or_may_start_again(addresses, killed):
    command = [sys.executable, "-c", MEET, str(killed), *addresses[:3]]
    other = Worker(addresses[:3], 1 - killed)
    with subprocess.Popen(command) as process:
        with connected(addresses[killed]) as (_, lines):
            assert json.loads(lines.readline())["rank"] == killed
        # Long enough for a hello.
        time.sleep(1.0)
        process.kill()
    if killed == 0 and "it closed the connection" in other.outcome():
        return
    rest = [rank for rank in range(3) if rank != 1 - killed]
    again = [Worker(addresses[:3], rank) for rank in rest]
    assert outcomes(other, *again) == [7] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_process_that_does_not_answer_is_reported(addresses, rank, monkeypatch):
    """The system accepts connections for a suspended process, too."""
    monkeypatch.setattr(rendezvous_messages, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.3)
    with ports.listening_socket(port_of(addresses[rank])):
        other = Worker(addresses[:2], 1 - rank, timeout=2.0)
        if rank:
            with connected(addresses[0]) as (opened, _):
                opened.sendall(hello(addresses[:2], 1))
                assert "is not reached from there" in other.outcome()
        assert "it accepts connections, but does not answer" in other.outcome()


def test_rank_0_that_hangs_after_the_hello_is_reported(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "VERDICT_SECONDS", 0.2)
    with ports.listening_socket(port_of(addresses[0])) as listener:
        worker = Worker(addresses[:2], 1, timeout=1.0)
        with listener.accept()[0] as opened:
            opened.sendall(b'{"rank": 0, "id": "x"}\n')
            assert "it gave no verdict" in worker.outcome()


def test_different_versions_are_named_on_all_ranks(addresses):
    workers = [
        Worker(addresses[:3], 0, facts={"keras": "3.15", "tensorflow": "2.21"}),
        Worker(addresses[:3], 1, facts={"keras": "3.15", "tensorflow": "2.18"}),
    ]
    assert "for tensorflow: '2.21' on rank 0, '2.18' on rank 1" in workers[1].outcome()
    assert "'2.18' on rank 1" in workers[0].outcome()


def test_different_addresses_are_named(addresses):
    other = [addresses[0], addresses[1], addresses[3]]
    workers = [Worker(addresses[:3], 0), Worker(other, 1)]
    for text in outcomes(*workers):
        assert f"'{addresses[2]}' on rank 0, '{addresses[3]}' on rank 1" in text


def test_different_numbers_of_workers_are_named(addresses):
    """Rank 0 has no address for rank 2, and reports it if a rank is missing."""
    leader = Worker(addresses[:2], 0, timeout=3.0)
    for text in outcomes(Worker(addresses[:3], 2), leader):
        assert "'2 workers' on rank 0, '3 workers' on rank 2" in text
    assert "missing ranks: 1" in leader.outcome()


@pytest.mark.parametrize("rank", [0, 1])
def test_address_that_leads_to_another_rank_is_named(
    addresses, rank, at_other_ports, monkeypatch
):
    """Two ranks have each other's address."""
    monkeypatch.setattr(rendezvous, "LINGER_SECONDS", 3.0)
    one, two = port_of(addresses[rank]), port_of(addresses[2])
    at_other_ports({one: two, two: one})
    workers = [Worker(addresses[:3], each) for each in range(3)]
    assert all("which leads to rank" in text for text in outcomes(*workers))


def test_address_that_cannot_be_reached_is_named(addresses, at_other_ports):
    at_other_ports({port_of(addresses[1]): port_of(addresses[3])})
    workers = [Worker(addresses[:2], rank, timeout=2.0) for rank in range(2)]
    for text in outcomes(*workers):
        assert f"{addresses[1]} for rank 1, which reached rank 0 but" in text


def test_two_processes_with_rank_0_are_reported(addresses, at_other_ports):
    """The second one listens at another port, as a process on another host."""
    first = Worker(addresses[:2], 0)
    with connected(addresses[0]):
        at_other_ports({port_of(addresses[0]): port_of(addresses[3])})
    second = Worker(addresses[:2], 0)
    assert "leads to another process with rank 0" in second.outcome()
    assert outcomes(first, Worker(addresses[:2], 1)) == [7, 7]


def test_second_process_with_a_rank_is_refused(addresses):
    workers = [Worker(addresses[:3], rank) for rank in (0, 1)]
    with connected(addresses[1]), connected(addresses[0]) as (opened, lines):
        opened.sendall(hello(addresses[:3], 1))
        assert json.loads(lines.readline())["rank"] == 0
        assert "two processes with rank 1" in lines.readline()
    assert outcomes(*workers, Worker(addresses[:3], 2)) == [7] * 3


def stranger(addresses, number):
    """Bytes that are no hello."""
    return [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)),
        b"\n" * 1000,
        b"[" * 200_000 + b"\n",
        b'{"rank": 1' + b" " * (2 << 20),
        b'{"rank": 1}\n',
        b"null\n",
        hello(addresses, 1, rank="1"),
        hello(addresses, 1, rank=0),
        hello(addresses, 1, rank=10**30),
        hello(addresses, 1, facts=[]),
        hello(addresses, 1, facts={"workers": 3}),
        hello(addresses, 1, patience=float("nan")),
        hello(addresses, 1, patience=-1),
        hello(addresses, 1, node=None),
    ][number]


def test_bytes_of_strangers_close_their_connection_only(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 1.0)
    workers = [Worker(addresses[:3], rank) for rank in (0, 1)]
    with contextlib.ExitStack() as stack:
        # They connect and send nothing.
        for _ in range(20):
            stack.enter_context(connected(addresses[0]))
        for number in range(15):
            with connected(addresses[0]) as (opened, lines):
                with contextlib.suppress(OSError):
                    opened.sendall(stranger(addresses[:3], number))
                with contextlib.suppress(OSError):
                    assert json.loads(lines.readline())["rank"] == 0
                    assert lines.readline() == ""
    assert outcomes(*workers, Worker(addresses[:3], 2)) == [7] * 3
