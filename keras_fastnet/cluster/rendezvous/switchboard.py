"""All connections of one worker."""

import contextlib
import math
import selectors
import socket
import time
from typing import Any

from keras_fastnet.cluster.rendezvous import limits
from keras_fastnet.cluster.rendezvous.line import Line


class Switchboard:
    """Accepts connections and collects what arrives on all of them."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._lines: set[Line] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "Switchboard":
        return self

    def __exit__(self, *_: object) -> None:
        # Closing at once could overtake a verdict that is on its way: those who
        # wait for it close first.
        end = time.monotonic() + limits.ANSWER_SECONDS
        for line in self._lines:
            line.finish()
        while time.monotonic() < end and any(
            line.expires == math.inf for line in self._lines
        ):
            self.messages()
        for line in list(self._lines):
            self.drop(line)
        self._selector.close()

    def add(self, line: Line) -> None:
        """Takes part in a connection."""
        self._lines.add(line)
        self._selector.register(line, selectors.EVENT_READ)

    def drop(self, line: Line, problem: str = "it is not wanted any more") -> None:
        """Ends a connection, if it has not ended already."""
        if line in self._lines:
            self._lines.remove(line)
            self._selector.unregister(line)
            line.close(problem)

    def messages(self) -> list[tuple[Line, dict[str, Any] | None]]:
        """Returns what has arrived, after waiting for a moment.

        `None` stands for the end of a connection, which is dropped.
        """
        arrived: list[tuple[Line, dict[str, Any] | None]] = []
        for key, _ in self._selector.select(limits.TICK_SECONDS):
            if isinstance(key.fileobj, Line):
                line = key.fileobj
                try:
                    arrived += [(line, message) for message in line.read()]
                except (OSError, ValueError, RecursionError):
                    self.drop(line, "what answers there is not that worker")
                    arrived.append((line, None))
            else:
                self._accept()
        now = time.monotonic()
        for line in [line for line in self._lines if line.expires < now]:
            self.drop(line, "it accepts connections, but does not answer")
        return arrived

    def _accept(self) -> None:
        # It may have gone again already.
        with contextlib.suppress(OSError):
            connection, address = self._listener.accept()
            # An IPv4 address may be written as an IPv6 one.
            self.add(Line(connection, address[0].removeprefix("::ffff:")))
