"""Connections between workers, which carry JSON objects, one to a line."""

import contextlib
import errno
import json
import logging
import math
import selectors
import socket
import time
from typing import Any

from keras_fastnet.cluster.rendezvous.token_proof import REFUSALS, TokenProof

_LOG = logging.getLogger(__name__)

TICK_SECONDS = 0.05
# A worker answers at once: during the rendezvous it does nothing else.
ANSWER_SECONDS = 5.0
# When a waiting worker logs what it waits for: first, and then repeatedly.
FIRST_LOG_SECONDS = 10.0
LOG_SECONDS = 60.0
# Enough for the addresses of some 30,000 workers; longer lines are not a worker's.
LONGEST_LINE_BYTES = 1 << 20
# A worker sends fewer before it is recognized: a proof, a hello, answers to calls.
MOST_LINES = 100
# More connections from processes that may be no workers displace the oldest of them.
MOST_STRANGERS = 256
# What `accept` raises when no further connection can be opened.
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Refused(ConnectionError):
    """The other process refuses this one because of their tokens.

    Args:
        refusal: A key of `REFUSALS`.
    """

    def __init__(self, refusal: str):
        super().__init__(f"it refuses the connection: {refusal}")
        self.refusal = refusal


class Connection:
    """A connection to another process, perhaps a worker.

    Args:
        opened: The socket.
        peer: The other process's host.
        rank: This worker's rank.
        token: What both ends must prove to have; `None` if nothing is asked for.
        dialed: Whether this worker has connected to the other process.

    Attributes:
        peer: The other process's host.
        expires: When it is closed, by the monotonic clock, unless `keep` is called.
        problem: Why this worker closed it; empty while it is open.
        stranger: Whether the other process connected and may be no worker.
        refusal: Why the other process refuses this one: a key of `REFUSALS`, or empty.
    """

    def __init__(
        self,
        opened: socket.socket,
        peer: str,
        rank: int,
        token: str | None = None,
        *,
        dialed: bool = False,
    ):
        opened.settimeout(ANSWER_SECONDS)
        self.peer = peer
        self.expires = time.monotonic() + ANSWER_SECONDS
        self.problem = ""
        self.stranger = not dialed
        self.refusal = ""
        self._socket = opened
        self._unread = b""
        self._lines = 0
        self._other_rank = -1
        self._dialed = dialed
        self._refused_it = False
        self._waiting: list[dict[str, Any]] = []
        self._proof = None if token is None else TokenProof(token, rank, dialed)
        if self._proof is not None and dialed:
            self._write(json.dumps(self._proof.challenge()).encode())

    @property
    def proved(self) -> bool:
        """Whether the other process has proved that it has the token."""
        return self._proof is not None and self._proof.complete

    def keep(self) -> None:
        """Keeps it open: the other process is a worker."""
        self.expires = math.inf
        self.stranger = False

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
        """Sends a message, after the other process has proved that it has the token.

        If the connection is broken, the next `read` fails.
        """
        payload = json.dumps(message).encode()
        if self._proof is None:
            self._write(payload)
        elif self._proof.complete:
            self._write(self._proof.seal(payload))
        else:
            self._waiting.append(message)

    def read(self) -> list[dict[str, Any]]:
        """Returns the complete messages that have arrived.

        Raises:
            OSError: If the connection is closed, or the other process refuses this one.
            ValueError: If something else than messages has arrived.
            RecursionError: If JSON with too many levels has arrived.
        """
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the connection was closed")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self._lines += len(lines)
        if len(self._unread) > LONGEST_LINE_BYTES or (
            self.stranger and self._lines > MOST_LINES
        ):
            raise ValueError("this is no worker")
        messages = [self._message(line) for line in lines]
        return [message for message in messages if message is not None]

    def _message(self, line: bytes) -> dict[str, Any] | None:
        """Returns the message in a line; `None` if it is not for the caller."""
        if self._refused_it:
            return None
        if self.proved and self._proof is not None:
            return _parse(self._proof.unseal(line))
        message = _parse(line)
        match message:
            case {"refused": str(refusal)} if self._dialed and refusal in REFUSALS:
                self.refusal = refusal
                raise Refused(refusal)
        if self._proof is None:
            return message
        return self._prove(self._proof, message)

    def _prove(
        self, proof: TokenProof, message: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Goes on with the proof.

        Returns:
            `None`, or the refusal of a worker without the token.
        """
        match message:
            case {"hello": int(rank)} if not self._dialed:
                return self._refuse("the worker has no token", rank)
            case {"nonce": _, "rank": int(rank)}:
                self._other_rank = rank
        try:
            answer = proof.answer(message)
        except PermissionError:
            if self._dialed:
                self.refusal = "the worker has another token"
                raise Refused(self.refusal) from None
            return self._refuse("the worker has another token", self._other_rank)
        if answer is not None:
            self._write(json.dumps(answer).encode())
        if proof.complete:
            for waiting in self._waiting:
                self.send(waiting)
            self._waiting.clear()
        return None

    def _refuse(self, refusal: str, rank: int) -> dict[str, Any]:
        self._refused_it = True
        self._write(json.dumps({"refused": refusal}).encode())
        self.finish()
        return {"refused": refusal, "rank": rank}

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(line + b"\n")


def _parse(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("this is no message")
    return message


class Connections:
    """All connections of one worker: accepts new ones and reads from all.

    Leaving the context closes them.

    Args:
        listener: The socket that listens on the worker's port.
        rank: This worker's rank.
        token: What all workers must prove to have. Defaults to `None`: nothing.
    """

    def __init__(self, listener: socket.socket, rank: int, token: str | None = None):
        self._listener = listener
        self._rank = rank
        self._token = token
        # In the order in which they were opened.
        self._open: dict[Connection, None] = {}
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

    def dialed(self, opened: socket.socket, peer: str) -> Connection:
        """Returns a connection that this worker has opened, and reads from it.

        Args:
            opened: The socket.
            peer: The other process's host.
        """
        connection = Connection(opened, peer, self._rank, self._token, dialed=True)
        self._add(connection)
        return connection

    def drop(
        self, connection: Connection, problem: str = "it is not needed any more"
    ) -> None:
        """Closes a connection, if it is still open."""
        if connection in self._open:
            del self._open[connection]
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
                except Refused as refused:
                    self.drop(connection, str(refused))
                    arrived.append((connection, None))
                except (OSError, ValueError, RecursionError):
                    self.drop(connection, "what answers there is not that worker")
                    arrived.append((connection, None))
            else:
                self._accept()
        now = time.monotonic()
        for connection in [each for each in self._open if each.expires < now]:
            self.drop(connection, "it accepts connections, but does not answer")
            arrived.append((connection, None))
        return arrived

    def _add(self, connection: Connection) -> None:
        self._open[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            # Otherwise the other process has closed it already.
            if error.errno in _FULL and not self._drop_strangers(half=True):
                time.sleep(TICK_SECONDS)
            return
        # IPv4 addresses may be written as IPv6 ones.
        peer = address[0].removeprefix("::ffff:")
        self._add(Connection(accepted, peer, self._rank, self._token))
        self._drop_strangers()

    def _drop_strangers(self, half: bool = False) -> int:
        """Drops the oldest strangers beyond `MOST_STRANGERS`, or half of them.

        Returns:
            How many were dropped. Workers among them connect again.
        """
        strangers = [each for each in self._open if each.stranger]
        excess = len(strangers) - MOST_STRANGERS
        dropped = strangers[: max(0, (len(strangers) + 1) // 2 if half else excess)]
        for connection in dropped:
            self.drop(connection)
        return len(dropped)


class WaitingLog:
    """Logs what a worker waits for, after 10 seconds and then every minute."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_LOG_SECONDS

    def log(self, text: str) -> None:
        """Logs `text` if it is time to."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + LOG_SECONDS
            _LOG.warning("%s", text)
