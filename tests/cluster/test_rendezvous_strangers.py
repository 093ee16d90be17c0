"""Other programs connect to the workers' ports, or answer there."""

import contextlib
import socket

import pytest

from keras_fastnet.cluster import ports
from tests.cluster.rendezvous_worker import (
    Worker,
    connect,
    outcomes,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")


STRANGE = {
    "nothing": b"",
    "http": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "garbage": bytes(range(256)) * 10,
    "number": b"5\n",
    "list": b"[]\n",
    "object": b'{"a": 1}\n',
    "no facts": b'{"hello": 1}\n',
    "odd hello": b'{"hello": "1", "facts": 3, "node": "a", "patience": []}\n',
    "odd number": b'{"hello": 1, "facts": {}, "node": "a", "patience": NaN}\n',
    "odd call": b'{"call": [], "leader": {}}\n',
    "echo": b'{"echo": "x"}\n',
    "call": b'{"call": 1, "leader": "x"}\n',
    "error": b'{"error": "x"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "endless": b"9" * 3_000_000,
}


@pytest.mark.parametrize("victim", [0, 1])
def test_stray_connections_are_ignored(addresses, victim):
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


def test_silent_connections_are_closed_after_a_while(addresses, soon):
    leader = Worker(addresses[:2], 0)
    with connect(addresses[0]) as stranger:
        assert stranger.recv(1) == b""
    assert outcomes(leader, Worker(addresses[:2], 1)) == [7] * 2


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"5\n"])
def test_other_program_at_the_address_of_rank_0_is_reported(addresses, soon, data):
    with ports.listening_socket(int(addresses[0].split(":")[1])) as listener:
        worker = Worker(addresses[:2], 1, timeout=0.6)
        connections = []
        listener.settimeout(0.05)
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


def test_workers_meet_through_a_proxy_that_starts_before_rank_0(addresses):
    with ports.listening_socket(int(addresses[0].split(":")[1])) as listener:
        worker = Worker(addresses[:2], 1)
        for _ in range(3):
            listener.accept()[0].close()
    assert outcomes(worker, Worker(addresses[:2], 0)) == [7] * 2
