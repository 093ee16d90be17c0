"""SIGTERM, which all workers heed after the same update."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.protocols import strategy_of

EXIT_CODE = 128 + signal.SIGTERM
"""That of a process which SIGTERM ended, in shells, Slurm and Kubernetes."""
# To ask all workers takes a few milliseconds: of a second, little.
_SECONDS_BETWEEN = 1.0


class Termination:
    """Notes SIGTERM, and lets the workers agree on when to leave.

    A scheduler may tell one worker, or all of them at slightly different times. While
    one waits for a sum nobody can leave; so they ask each other after an update, about
    once a second, and leave after the same one.
    """

    def __init__(self) -> None:
        self._asked = False
        self._listening = False
        self._previous: Any = None
        self._left = 1
        self._interval = 1
        self._since = 0.0

    def listen(self) -> None:
        """Notes SIGTERM from now on, where Python lets this thread do so."""
        self._asked = False
        self._left = self._interval = 1
        self._since = time.monotonic()
        # Ray, for one, trains in another thread, and has ways of its own.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
            self._listening = True

    def stop_listening(self) -> None:
        """Gives SIGTERM back to who had it before."""
        if self._listening:
            # `None` is a handler that was not set from Python.
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._listening = False

    def is_due(self, model: keras.Model, *, now: bool = False) -> bool:
        """Returns whether to leave; all workers ask it after every update.

        Args:
            model: The model that is being trained.
            now: Whether to ask the others however long ago it was. Equal on all.
        """
        strategy = strategy_of(model)
        if strategy is None or strategy.num_workers == 1:
            return self._asked
        self._left -= 1
        if self._left > 0 and not now:
            return False
        own = tf.constant([self._asked, self._next_interval()], tf.int64)
        seen = strategy.fit_support.workers.values_of_all(own)
        # The chief's, as their clocks differ.
        self._left = self._interval = seen[0][1]
        self._since = time.monotonic()
        return any(asked for asked, _ in seen)

    def _next_interval(self) -> int:
        seconds = time.monotonic() - self._since
        updates = max(1, self._interval - max(0, self._left))
        fitting = int(updates * _SECONDS_BETWEEN / max(seconds, 1e-6))
        # Not too far at once: the first steps tell little.
        return max(1, min(fitting, 2 * self._interval))

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not _within_fit(frame):
            # A `fit` that an exception ended has not stopped listening.
            self.stop_listening()
            os.kill(os.getpid(), number)
        elif self._asked:
            # Whoever asks again does not want to wait.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked = True


def _within_fit(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "fit":
        frame = frame.f_back
    return frame is not None
