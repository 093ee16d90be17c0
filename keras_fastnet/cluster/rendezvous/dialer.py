"""Connects to another worker's address until it answers."""

import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

from keras_fastnet.cluster.cluster_spec import split_address
from keras_fastnet.cluster.rendezvous.connections import (
    ANSWER_SECONDS,
    Connection,
    Connections,
)

RETRY_SECONDS = 0.2


class Dialer:
    """Connects to an address, again and again, until it is closed.

    Args:
        connections: This worker's connections.
        address: The address.

    Attributes:
        connection: The connection, while there is one.
        problem: Why the last attempt failed.
        refusal: Why the process at the address has refused this one: a key of
            `REFUSALS`, or empty.
        refused_seconds: How long it has refused all attempts.
    """

    def __init__(self, connections: Connections, address: str):
        self.connection: Connection | None = None
        self.problem = "no answer yet"
        self.refusal = ""
        self.refused_seconds = 0.0
        self._first_refusal = 0.0
        self._connections = connections
        self._target = split_address(address)
        self._attempt = _connect_in_thread(self._target, pause=0.0)

    def step(self, greeting: dict[str, Any]) -> None:
        """Looks after the current attempt, and starts another if it has failed.

        Args:
            greeting: The first message on every new connection.
        """
        if self.connection is None and self._attempt.done():
            error = self._attempt.exception()
            if error is None:
                opened = self._attempt.result()
                self.connection = self._connections.dialed(opened, self._target[0])
                self.connection.send(greeting)
            else:
                self._try_again(str(error))
        elif self.connection is not None and self.connection.problem:
            self._note_refusal(self.connection.refusal)
            self._try_again(self.connection.problem)

    def close(self) -> None:
        """Closes the connection, and ends the attempts."""
        if self.connection is not None:
            self._connections.drop(self.connection)
            self.connection = None
        else:
            self._attempt.add_done_callback(_close_result)

    def _note_refusal(self, refusal: str) -> None:
        if refusal and not self.refusal:
            self._first_refusal = time.monotonic()
        self.refusal = refusal
        self.refused_seconds = time.monotonic() - self._first_refusal if refusal else 0

    def _try_again(self, problem: str) -> None:
        self.connection = None
        self.problem = problem
        self._attempt = _connect_in_thread(self._target, pause=RETRY_SECONDS)


def _connect_in_thread(
    target: tuple[str, int], pause: float
) -> "Future[socket.socket]":
    """Connects in a thread, because the look-up of a name has no time limit."""
    attempt: Future[socket.socket] = Future()

    def connect() -> None:
        time.sleep(pause)
        try:
            attempt.set_result(_connect(target))
        except Exception as error:
            attempt.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    return attempt


def _connect(target: tuple[str, int]) -> socket.socket:
    opened = socket.create_connection(target, timeout=ANSWER_SECONDS)
    try:
        # TCP may connect a socket to itself if no process listens.
        if opened.getsockname() == opened.getpeername():
            raise ConnectionRefusedError("no process listens there")
    except OSError:
        opened.close()
        raise
    return opened


def _close_result(attempt: "Future[socket.socket]") -> None:
    if attempt.exception() is None:
        attempt.result().close()
