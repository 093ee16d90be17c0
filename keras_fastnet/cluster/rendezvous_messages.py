"""Messages of a rendezvous: JSON objects, one to a line."""

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

# A worker answers at once: during the rendezvous it does nothing else.
ANSWER_SECONDS = 5.0
# Enough for the addresses of some 30,000 workers.
LONGEST_LINE_BYTES = 1 << 20


class Introduction(NamedTuple):
    """What a worker sends to each process that connects."""

    rank: int
    id: str


class Hello(NamedTuple):
    """What a rank sends to rank 0; `patience` is its rest of `timeout`, in seconds."""

    rank: int
    id: str
    facts: dict[str, Any]
    node: str
    patience: float


def send(opened: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends a message.

    Args:
        opened: The connection.
        message: The message.
    """
    opened.sendall(json.dumps(message).encode() + b"\n")


def read(opened: socket.socket, seconds: float) -> dict[str, Any]:
    """Returns the next message.

    Args:
        opened: The connection.
        seconds: How long to wait for the whole message.

    Raises:
        OSError: If the connection ends, or nothing has come in time.
        ValueError: If something else than a message has come.
    """
    end = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        opened.settimeout(max(1e-3, end - time.monotonic()))
        chunk = opened.recv(1 << 16)
        line += chunk
        if not chunk:
            raise ConnectionError("it closed the connection")
        if len(line) > LONGEST_LINE_BYTES:
            raise ValueError("what answers there is not that worker")
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    raise ValueError("what answers there is not that worker")


def read_introduction(opened: socket.socket) -> Introduction:
    """Returns which worker answers at an address.

    Args:
        opened: A connection to it.

    Raises:
        OSError: If the connection ends, or nothing has come in time.
        ValueError: If what answers there is no worker.
    """
    try:
        message = read(opened, ANSWER_SECONDS)
    except TimeoutError:
        raise TimeoutError("it accepts connections, but does not answer") from None
    match message:
        case {"rank": int(rank), "id": str(number)}:
            return Introduction(rank, number)
    raise ValueError("what answers there is not that worker")


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """Returns the hello that a message holds.

    Args:
        message: The message.

    Raises:
        ValueError: If it holds none.
    """
    match message:
        case {
            "rank": int(rank),
            "id": str(number),
            "facts": {"workers": list(workers)} as facts,
            "node": str(node),
            "patience": int() | float() as patience,
            # NaN, which Python's JSON allows, is not in the range.
        } if 0 < rank < len(workers) and 0 <= patience < 1e9:
            return Hello(rank, number, facts, node, patience)
    raise ValueError("this is no worker")
