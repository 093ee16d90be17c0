"""Connections between workers, which carry JSON objects, one to a line."""

import contextlib
import json
import logging
import math
import selectors
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

from keras_fastnet.cluster.cluster_spec import split_address

_LOG = logging.getLogger(__name__)

TICK_SECONDS = 0.05
RETRY_SECONDS = 0.2
# A worker answers at once: during the rendezvous it does nothing else.
ANSWER_SECONDS = 5.0
# When a waiting worker logs what it waits for: first, and then repeatedly.
FIRST_LOG_SECONDS = 10.0
LOG_SECONDS = 60.0
# Enough for the addresses of some 30,000 workers; longer lines are not a worker's.
LONGEST_LINE_BYTES = 1 << 20


class Connection:
    """A connection to another process, perhaps a worker.

    Attributes:
        peer: The other process's host.
        expires: When it is closed, by the monotonic clock, unless `keep` is called.
        problem: Why this worker closed it; empty while it is open.
    """

    def __init__(self, opened: socket.socket, peer: str):
        opened.settimeout(ANSWER_SECONDS)
        self.peer = peer
        self.expires = time.monotonic() + ANSWER_SECONDS
        self.problem = ""
        self._socket = opened
        self._unread = b""

    def keep(self) -> None:
        """Keeps it open: the other process is a worker."""
        self.expires = math.inf

    def fileno(self) -> int:
        """Returns the file descriptor, for selectors."""
        return self._socket.fileno()

    def close(self, problem: str = "it is not needed any more") -> None:
        """Closes it."""
        self.problem = problem
        self._socket.close()

    def finish(self) -> None:
        """Tells the other process that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message. If the connection is broken, the next `read` fails."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the complete messages that have arrived.

        Raises:
            OSError: If the connection is closed.
            ValueError: If something else than messages has arrived.
            RecursionError: If JSON with too many levels has arrived.
        """
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the connection was closed")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if len(self._unread) > LONGEST_LINE_BYTES or not all(
            isinstance(message, dict) for message in messages
        ):
            raise ValueError("this is no message")
        return messages


class Connections:
    """All connections of one worker: accepts new ones and reads from all.

    Leaving the context closes them.

    Args:
        listener: The socket that listens on the worker's port.
    """

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._open: set[Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        # Closing at once may discard the last message before it is read. So the
        # receiver closes first.
        end = time.monotonic() + ANSWER_SECONDS
        for connection in self._open:
            connection.finish()
        while time.monotonic() < end and any(
            connection.expires == math.inf for connection in self._open
        ):
            self.messages()
        for connection in list(self._open):
            self.drop(connection)
        self._selector.close()

    def add(self, connection: Connection) -> None:
        """Reads from a connection from now on."""
        self._open.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def drop(
        self, connection: Connection, problem: str = "it is not needed any more"
    ) -> None:
        """Closes a connection, if it is still open."""
        if connection in self._open:
            self._open.remove(connection)
            self._selector.unregister(connection)
            connection.close(problem)

    def messages(self) -> list[tuple[Connection, dict[str, Any] | None]]:
        """Waits for at most a tick and returns the messages that have arrived.

        `None` in place of a message stands for a connection that was closed.
        """
        arrived: list[tuple[Connection, dict[str, Any] | None]] = []
        for key, _ in self._selector.select(TICK_SECONDS):
            if isinstance(key.fileobj, Connection):
                connection = key.fileobj
                try:
                    arrived += [(connection, message) for message in connection.read()]
                except (OSError, ValueError, RecursionError):
                    self.drop(connection, "what answers there is not that worker")
                    arrived.append((connection, None))
            else:
                self._accept()
        now = time.monotonic()
        for connection in [each for each in self._open if each.expires < now]:
            self.drop(connection, "it accepts connections, but does not answer")
        return arrived

    def _accept(self) -> None:
        # The other process may have closed it already.
        with contextlib.suppress(OSError):
            accepted, address = self._listener.accept()
            # IPv4 addresses may be written as IPv6 ones.
            self.add(Connection(accepted, address[0].removeprefix("::ffff:")))


class Dialer:
    """Connects to an address, again and again, until it is closed.

    Attributes:
        connection: The connection, while there is one.
        problem: Why the last attempt failed.
    """

    def __init__(self, connections: Connections, address: str):
        self.connection: Connection | None = None
        self.problem = "no answer yet"
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
                self.connection = self._attempt.result()
                self._connections.add(self.connection)
                self.connection.send(greeting)
            else:
                self._try_again(str(error))
        elif self.connection is not None and self.connection.problem:
            self._try_again(self.connection.problem)

    def close(self) -> None:
        """Closes the connection, and ends the attempts."""
        if self.connection is not None:
            self._connections.drop(self.connection)
            self.connection = None
        else:
            self._attempt.add_done_callback(_close_result)

    def _try_again(self, problem: str) -> None:
        self.connection = None
        self.problem = problem
        self._attempt = _connect_in_thread(self._target, pause=RETRY_SECONDS)


def _connect_in_thread(target: tuple[str, int], pause: float) -> "Future[Connection]":
    """Connects in a thread, because the look-up of a name has no time limit."""
    attempt: Future[Connection] = Future()

    def connect() -> None:
        time.sleep(pause)
        try:
            attempt.set_result(_connect(target))
        except Exception as error:
            attempt.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    return attempt


def _connect(target: tuple[str, int]) -> Connection:
    opened = socket.create_connection(target, timeout=ANSWER_SECONDS)
    try:
        # TCP may connect a socket to itself if no process listens.
        if opened.getsockname() == opened.getpeername():
            raise ConnectionRefusedError("no process listens there")
    except OSError:
        opened.close()
        raise
    return Connection(opened, target[0])


def _close_result(attempt: "Future[Connection]") -> None:
    if attempt.exception() is None:
        attempt.result().close()


class WaitingLog:
    """Logs what a worker waits for, after 10 seconds and then every minute."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_LOG_SECONDS

    def log(self, text: str) -> None:
        """Logs `text` if it is time to."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + LOG_SECONDS
            _LOG.warning("%s", text)
