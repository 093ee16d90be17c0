"""A connection between two workers."""

import contextlib
import json
import math
import socket
import time
from typing import Any

from keras_fastnet.cluster.rendezvous import limits


class Line:
    """A connection that carries one JSON object to a line.

    Attributes:
        peer: The other end's host.
        expires: When it is dropped, by the monotonic clock, unless it is kept.
        problem: Why this end closed it; empty while it is open.
    """

    def __init__(self, connection: socket.socket, peer: str):
        connection.settimeout(limits.ANSWER_SECONDS)
        self.peer = peer
        self.expires = time.monotonic() + limits.ANSWER_SECONDS
        self.problem = ""
        self._socket = connection
        self._unread = b""

    def keep(self) -> None:
        """Says that a worker is at the other end."""
        self.expires = math.inf

    def fileno(self) -> int:
        """Lets selectors wait for it."""
        return self._socket.fileno()

    def close(self, problem: str = "it is not wanted any more") -> None:
        """Ends it."""
        self.problem = problem
        self._socket.close()

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, message: dict[str, Any]) -> None:
        """Sends it, unless the connection is broken, which reading will show."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have arrived whole, when something has arrived.

        Raises an error where the connection has ended or comes from no worker.
        """
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the connection was closed")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if len(self._unread) > limits.LONGEST_LINE_BYTES or not all(
            isinstance(message, dict) for message in messages
        ):
            raise ValueError("this is no message")
        return messages
