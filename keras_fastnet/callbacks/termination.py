"""Handling of SIGTERM, after which all workers exit after the same update."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import strategy_of

EXIT_CODE = 128 + signal.SIGTERM
"""Exit code of a process ended by SIGTERM, in shells, Slurm and Kubernetes."""
# Interval at which workers ask each other, which takes a few milliseconds.
_SECONDS_BETWEEN = 1.0


class Termination:
    """Records SIGTERM, and agrees with all workers when to exit.

    A scheduler may signal one worker, or all of them at slightly different times. If
    one worker exited alone, the others would wait in an all-reduce. The workers
    therefore ask each other after an update, about once a second, and exit after the
    same update.
    """

    def __init__(self) -> None:
        self._asked = False
        self._listening = False
        self._previous: Any = None
        self._left = 1
        self._interval = 1
        self._since = 0.0

    def listen(self) -> None:
        """Records SIGTERM from now on, if this is the main thread."""
        self._asked = False
        self._left = self._interval = 1
        self._since = time.monotonic()
        # Python allows signal handlers in the main thread only. Ray trains in another
        # thread, and handles SIGTERM itself.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._listening = True

    def stop_listening(self) -> None:
        """Restores the previous handler of SIGTERM."""
        if self._listening:
            # `None` means a handler that was not set from Python.
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._listening = False

    def is_due(self, model: keras.Model, *, now: bool = False) -> bool:
        """Returns whether to exit. All workers must call it after every update.

        Args:
            model: The model that is being trained.
            now: Whether to ask the other workers regardless of the interval; the same
                on all workers. Defaults to `False`.
        """
        strategy = strategy_of(model)
        if strategy is None or strategy.num_workers == 1:
            return self._asked
        self._left -= 1
        if self._left > 0 and not now:
            return False
        own = [self._asked, self._next_interval()]
        seen = strategy.fit_support.workers.gather(own, "the end of an update")
        # The chief's interval, since clocks differ.
        self._left = self._interval = seen[0][1]
        self._since = time.monotonic()
        return any(asked for asked, _ in seen)

    def _next_interval(self) -> int:
        seconds = time.monotonic() - self._since
        updates = max(1, self._interval - max(0, self._left))
        fitting = int(updates * _SECONDS_BETWEEN / max(seconds, 1e-6))
        # At most doubled, since the first steps are slow.
        return max(1, min(fitting, 2 * self._interval))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not _within_fit(frame):
            # After an exception in `fit` the handler is still set.
            self.stop_listening()
            os.kill(os.getpid(), number)
        self._asked = True


def _within_fit(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "fit":
        frame = frame.f_back
    return frame is not None
