"""Workers that meet, and everything that can go wrong meanwhile. No TensorFlow."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from keras_fastnet.cli.ports import reserved_ports
from keras_fastnet.errors import ClusterError
from keras_fastnet.strategies import rendezvous
from keras_fastnet.strategies.cluster import Cluster
from keras_fastnet.strategies.rendezvous import meet

FACTS = {"tensorflow": "2.21"}
PATIENCE = 60.0  # against hangs only


@pytest.fixture
def addresses():
    with reserved_ports(4) as ports:
        yield tuple(f"127.0.0.1:{port}" for port in ports)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    end = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert threading.active_count() == 1


@pytest.fixture
def soon(monkeypatch):
    """Shortens what is waited for after the decision."""
    monkeypatch.setattr(rendezvous, "_LINGER_SECONDS", 0.2)
    monkeypatch.setattr(rendezvous, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(rendezvous, "_VERDICT_SECONDS", 1.5)
    monkeypatch.setattr(rendezvous, "_PORT_SECONDS", 0.2)


class Worker(threading.Thread):
    """`meet` in a thread."""

    def __init__(
        self, addresses, rank, *, facts=FACTS, proposal=7, timeout=20.0, after=0.0
    ):
        super().__init__()
        self.result = None
        self.seconds = None
        self._after = after
        self._arguments = (Cluster(tuple(addresses), rank), facts, proposal, timeout)
        self.start()

    def run(self):
        time.sleep(self._after)
        start = time.monotonic()
        try:
            self.result = meet(*self._arguments)
        except Exception as error:
            self.result = error
        self.seconds = time.monotonic() - start

    def outcome(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        if isinstance(self.result, Exception):
            assert isinstance(self.result, ClusterError), repr(self.result)
            return str(self.result)
        return self.result


def outcomes(*workers):
    return [worker.outcome() for worker in workers]


def connect(address):
    """Connects as soon as somebody listens."""
    host, port = address.split(":")
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=PATIENCE)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)


def say(connection, value):
    connection.sendall(json.dumps(value).encode() + b"\n")


def hello(addresses, rank, name="x"):
    facts = {"workers": list(addresses), **FACTS}
    return {"hello": rank, "name": name, "facts": facts, "patience": 30}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_hear_the_proposal_of_rank_0(addresses, size):
    proposals = [[1, "a"], "b", None, 3]
    workers = [
        Worker(addresses[:size], rank, proposal=proposals[rank]) for rank in range(size)
    ]
    assert outcomes(*workers) == [[1, "a"]] * size
    assert max(worker.seconds for worker in workers) < 5


def test_many_workers():
    with reserved_ports(24) as ports:
        addresses = [f"localhost:{port}" for port in ports]
        workers = [Worker(addresses, rank) for rank in reversed(range(24))]
        assert outcomes(*workers) == [7] * 24


@pytest.mark.parametrize("late", [0, 1, 2])
def test_any_rank_may_come_last(addresses, late):
    workers = [
        Worker(addresses[:3], rank, after=0.5 if rank == late else 0.0)
        for rank in range(3)
    ]
    assert outcomes(*workers) == [7] * 3


def test_meeting_again_on_the_same_ports(addresses):
    for turn in range(3):
        workers = [Worker(addresses, rank, proposal=turn) for rank in range(4)]
        assert outcomes(*workers) == [turn] * 4


def test_ipv6():
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


def test_without_ipv6(addresses, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert outcomes(*(Worker(addresses[:2], rank) for rank in range(2))) == [7] * 2


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "5", None])
def test_timeout_must_be_a_number(addresses, timeout):
    with pytest.raises(ValueError, match="`start_timeout` must be a positive"):
        meet(Cluster(addresses, 0), FACTS, 0, timeout)


# Somebody does not come


def test_missing_follower_is_named_to_all(addresses, soon):
    workers = [Worker(addresses[:3], rank, timeout=1.0) for rank in (0, 1)]
    for text in outcomes(*workers):
        assert f"missing rank(s) 2 ({addresses[2]})." in text
        assert "within 1 s" in text
    assert max(worker.seconds for worker in workers) < 4


def test_missing_rank_0(addresses, soon):
    worker = Worker(addresses[:2], 1, timeout=1.0)
    text = worker.outcome()
    assert "Rank 1 must reach rank 0 within 1 s" in text
    assert addresses[0] in text
    assert "refused" in text
    assert worker.seconds < 3


def test_nobody_waits_longer_than_its_timeout_for_a_late_rank_0(addresses, soon):
    early = Worker(addresses[:3], 1, timeout=2.0)
    leader = Worker(addresses[:3], 0, timeout=20.0, after=1.0)
    assert "missing rank(s) 2" in early.outcome()
    assert "missing rank(s) 2" in leader.outcome()
    assert early.seconds < 4
    assert leader.seconds < 4


def test_unknown_host(addresses, soon):
    worker = Worker(["no-such-host.invalid:1", addresses[1]], 1, timeout=1.0)
    text = worker.outcome()
    assert "no-such-host.invalid:1" in text
    assert worker.seconds < 3


def test_host_name_that_cannot_be_looked_up(addresses, soon):
    worker = Worker(["a" * 70 + ".invalid:1", addresses[1]], 1, timeout=0.5)
    assert "must reach rank 0" in worker.outcome()


def test_slow_name_service_does_not_prolong_the_wait(addresses, soon, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: gate.wait(30))
    worker = Worker(addresses[:2], 1, timeout=0.5)
    try:
        assert "no answer yet" in worker.outcome()
        assert worker.seconds < 2
    finally:
        monkeypatch.undo()
        monkeypatch.setattr(rendezvous, "_connected_to_itself", lambda _: True)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        gate.set()
        deadline = time.monotonic() + 5
        while threading.active_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.02)


def test_a_user_who_waits_is_told_for_whom(addresses, soon, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_FIRST_NOTICE_SECONDS", 0.3)
    with caplog.at_level(logging.WARNING):
        outcomes(*(Worker(addresses[:3], rank, timeout=1.0) for rank in (0, 1)))
    told = sorted(caplog.messages)
    assert len(told) == 2
    assert f"Rank 0 waits for 1 worker(s) to start: 2 ({addresses[2]})" in told[0]
    assert "Rank 1 has reached rank 0" in told[1]


# Somebody is not who it should be


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
        Worker(addresses[:3], 2, after=0.7),
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
        say(twin, {"call": 0, "token": "t", "name": "twin"})
        heard = json.loads(twin.makefile().readline())["error"]
    for text in [heard, *outcomes(leader, worker)]:
        assert "two processes with rank 0" in text


def test_rank_0_whose_address_leads_to_another_rank_0(addresses, soon, monkeypatch):
    """As on a second host, this one's port is not that of its address."""
    first = Worker(addresses[:2], 0)
    connect(addresses[0]).close()
    listen = rendezvous._bound
    other_port = int(addresses[3].split(":")[1])
    monkeypatch.setattr(rendezvous, "_bound", lambda port: listen(other_port))
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
    listen = rendezvous._bound
    with reserved_ports(3) as ports:
        swapped = {ports[0]: ports[0], ports[1]: ports[2], ports[2]: ports[1]}
        monkeypatch.setattr(rendezvous, "_bound", lambda port: listen(swapped[port]))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        workers = [Worker(addresses, rank) for rank in range(3)]
        for text in outcomes(*workers):
            assert "which leads to rank" in text


def test_follower_that_cannot_be_reached(addresses, soon, monkeypatch):
    listen = rendezvous._bound
    ports = [int(address.split(":")[1]) for address in addresses]
    monkeypatch.setattr(
        rendezvous, "_bound", lambda p: listen(ports[3] if p == ports[1] else p)
    )
    workers = [Worker(addresses[:2], rank, timeout=1.0) for rank in range(2)]
    for text in outcomes(*workers):
        assert f"{addresses[1]} for rank 1, which reached rank 0 but" in text
        assert "refused" in text
    assert max(worker.seconds for worker in workers) < 5


def test_another_program_at_the_address_of_a_follower(addresses, soon, monkeypatch):
    listen = rendezvous._bound
    ports = [int(address.split(":")[1]) for address in addresses]
    with listen(ports[1]):
        monkeypatch.setattr(
            rendezvous, "_bound", lambda p: listen(ports[3] if p == ports[1] else p)
        )
        workers = [Worker(addresses[:2], rank, timeout=1.0) for rank in range(2)]
        for text in outcomes(*workers):
            assert "it accepts connections, but does not answer" in text


# Ports


@pytest.mark.parametrize("rank", [0, 1])
def test_busy_port(addresses, soon, rank):
    port = int(addresses[rank].split(":")[1])
    with rendezvous._bound(port):
        worker = Worker(addresses[:2], rank)
        text = worker.outcome()
    assert f"Rank {rank} must be able to listen" in text
    assert addresses[rank] in text
    assert worker.seconds < 2


def test_port_that_becomes_free(addresses):
    listener = rendezvous._bound(int(addresses[0].split(":")[1]))
    worker = Worker(addresses[:1], 0)
    time.sleep(0.5)
    listener.close()
    assert worker.outcome() == 7


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on any port")
def test_forbidden_port(soon):
    assert "denied" in Worker(["127.0.0.1:1"], 0).outcome()


# Strangers

STRANGE = {
    "nothing": b"",
    "http": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "garbage": bytes(range(256)) * 10,
    "number": b"5\n",
    "list": b"[]\n",
    "object": b'{"a": 1}\n',
    "no facts": b'{"hello": 1}\n',
    "odd hello": b'{"hello": "1", "name": 2, "facts": 3, "patience": []}\n',
    "odd number": b'{"hello": 1, "name": "", "facts": {}, "patience": NaN}\n',
    "odd call": b'{"call": [], "token": 1, "name": {}}\n',
    "echo": b'{"echo": "x"}\n',
    "token": b'{"token": "x"}\n',
    "error": b'{"error": "x"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "endless": b"9" * 3_000_000,
}


@pytest.mark.parametrize("victim", [0, 1])
def test_strangers_are_dropped(addresses, victim):
    workers = [Worker(addresses[:3], 0), Worker(addresses[:3], 1)]
    with contextlib.ExitStack() as stack:
        for data in STRANGE.values():
            stranger = stack.enter_context(connect(addresses[victim]))
            with contextlib.suppress(OSError):
                stranger.sendall(data)
        # One more that resets the connection.
        stranger = connect(addresses[victim])
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stranger.close()
        workers.append(Worker(addresses[:3], 2))
        assert outcomes(*workers) == [7] * 3
    assert max(worker.seconds for worker in workers) < 8


def test_silent_strangers_are_dropped_after_a_while(addresses, soon):
    leader = Worker(addresses[:2], 0)
    with connect(addresses[0]) as stranger:
        assert stranger.recv(1) == b""
    assert outcomes(leader, Worker(addresses[:2], 1)) == [7] * 2


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"5\n"])
def test_another_program_at_the_address_of_rank_0(addresses, soon, data):
    with rendezvous._bound(int(addresses[0].split(":")[1])) as listener:
        worker = Worker(addresses[:2], 1, timeout=1.0)
        connections = []
        listener.settimeout(0.2)
        while worker.is_alive():
            with contextlib.suppress(OSError):
                connections.append(listener.accept()[0])
                connections[-1].sendall(data)
        for connection in connections:
            connection.close()
    text = worker.outcome()
    assert "Rank 1 must reach rank 0" in text
    assert "not answer" in text or "not rank 0" in text or "not that worker" in text
    assert worker.seconds < 4


def test_proxy_that_accepts_before_rank_0_is_there(addresses):
    with rendezvous._bound(int(addresses[0].split(":")[1])) as listener:
        worker = Worker(addresses[:2], 1)
        for _ in range(3):
            listener.accept()[0].close()
    assert outcomes(worker, Worker(addresses[:2], 0)) == [7] * 2


# Somebody dies

SCRIPT = """
import sys
import types

import keras_fastnet

# The package itself would import TensorFlow, which takes seconds.
package = types.ModuleType("keras_fastnet.strategies")
package.__path__ = [keras_fastnet.__path__[0] + "/strategies"]
sys.modules[package.__name__] = package

from keras_fastnet.strategies.cluster import Cluster
from keras_fastnet.strategies.rendezvous import meet

rank, *addresses = sys.argv[1:]
meet(Cluster(tuple(addresses), int(rank)), {"tensorflow": "2.21"}, 7, 60.0)
"""


def come_and_die(addresses, rank):
    """What rank 0 sees of a worker that dies in the meeting."""
    with connect(addresses[0]) as connection:
        say(connection, hello(addresses, rank))
        assert "welcome" in connection.makefile().readline()


def test_follower_dies_and_comes_again(addresses):
    leader = Worker(addresses[:3], 0)
    come_and_die(addresses[:3], 1)
    again = [Worker(addresses[:3], rank) for rank in (1, 2)]
    assert outcomes(leader, *again) == [7] * 3


def test_follower_dies_for_good(addresses, soon):
    leader = Worker(addresses[:3], 0, timeout=2.0)
    follower = Worker(addresses[:3], 2, timeout=20.0)
    come_and_die(addresses[:3], 1)
    for text in outcomes(leader, follower):
        assert f"rank(s) 1 ({addresses[1]}, which came and ended again)" in text
    assert follower.seconds < 6


def test_rank_0_is_killed(addresses, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_FIRST_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(rendezvous, "_NOTICE_SECONDS", 0.1)
    command = [sys.executable, "-c", SCRIPT, "0", *addresses[:3]]
    with subprocess.Popen(command) as leader:
        try:
            follower = Worker(addresses[:3], 1, timeout=60.0)
            end = time.monotonic() + 30
            while not any("has reached rank 0" in text for text in caplog.messages):
                assert time.monotonic() < end
                time.sleep(0.02)
        finally:
            leader.kill()
        start = time.monotonic()
        assert "it closed the connection" in follower.outcome()
        assert time.monotonic() - start < 3


def test_rank_0_hangs_after_the_welcome(addresses, soon):
    follower = Worker(addresses[:2], 1, timeout=1.0)
    with rendezvous._bound(int(addresses[0].split(":")[1])) as listener:
        connection = listener.accept()[0]
        with connection:
            say(connection, {"welcome": 1})
            assert "it gave no verdict" in follower.outcome()
    assert follower.seconds < 7


def test_follower_hangs_at_the_verdict(addresses, soon):
    """It has said its name, and answers no more: rank 0 must not wait for it."""
    leader = Worker(addresses[:2], 0, timeout=1.0)
    with connect(addresses[0]) as stuck:
        say(stuck, hello(addresses[:2], 1))
        assert "is not reached from there" in leader.outcome()
    assert leader.seconds < 6
