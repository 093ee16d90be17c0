"""Calls to another worker's address."""

import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

from keras_fastnet.cluster.cluster_spec import split_address
from keras_fastnet.cluster.rendezvous import limits
from keras_fastnet.cluster.rendezvous.line import Line
from keras_fastnet.cluster.rendezvous.switchboard import Switchboard


class Call:
    """Calls an address again and again until it is closed.

    Attributes:
        line: The connection, while there is one.
        problem: Why the last attempt failed.
    """

    def __init__(self, board: Switchboard, address: str):
        self.line: Line | None = None
        self.problem = "no answer yet"
        self._board = board
        self._target = split_address(address)
        self._attempt = _connect_in_thread(self._target, pause=0.0)

    def step(self, greeting: dict[str, Any]) -> None:
        """Goes on with it; `greeting` is said first on every connection."""
        if self.line is None and self._attempt.done():
            error = self._attempt.exception()
            if error is None:
                self.line = self._attempt.result()
                self._board.add(self.line)
                self.line.send(greeting)
            else:
                self._try_again(str(error))
        elif self.line is not None and self.line.problem:
            self._try_again(self.line.problem)

    def close(self) -> None:
        """Ends it."""
        if self.line is not None:
            self._board.drop(self.line)
            self.line = None
        else:
            self._attempt.add_done_callback(_hang_up)

    def _try_again(self, problem: str) -> None:
        self.line = None
        self.problem = problem
        self._attempt = _connect_in_thread(self._target, pause=limits.RETRY_SECONDS)


def _connect_in_thread(target: tuple[str, int], pause: float) -> "Future[Line]":
    """Connects in a thread, as nothing limits the time of a name's look-up."""
    attempt: Future[Line] = Future()

    def connect() -> None:
        time.sleep(pause)
        try:
            attempt.set_result(_connect(target))
        except Exception as error:
            attempt.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    return attempt


def _connect(target: tuple[str, int]) -> Line:
    connection = socket.create_connection(target, timeout=limits.ANSWER_SECONDS)
    try:
        # TCP may connect a socket to itself while nobody listens.
        if connection.getsockname() == connection.getpeername():
            raise ConnectionRefusedError("nobody listens there")
    except OSError:
        connection.close()
        raise
    return Line(connection, target[0])


def _hang_up(attempt: "Future[Line]") -> None:
    if attempt.exception() is None:
        attempt.result().close()
