"""`Supervisor`, which watches the workers of one launch until all have ended."""

import contextlib
import math
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from keras_fastnet.launcher.output import Display, WorkerOutput
from keras_fastnet.launcher.worker_process import (
    TOLD_TO_END,
    WorkerProcess,
    living_groups,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READ_SIZE = 1 << 16
# Together more than a pipe holds (64 KiB by default). The number is limited because a
# process that the worker left behind may write endlessly.
_READS_OF_A_FULL_PIPE = 16
_POLL_SECONDS = 0.05
# A worker that has written a traceback and does not end: its traceback is shown then.
_ENDING_SECONDS = 5.0
# The supervisor waits so long for processes that got SIGKILL and hang in the kernel.
_KILL_SECONDS = 5.0


class Ending(NamedTuple):
    """Why and how the workers of a start must end.

    Attributes:
        reason: Why, in some words.
        gently: Whether they end at the next update, with a backup; otherwise at once.
    """

    reason: str
    gently: bool = False


class Supervisor:
    """Passes the workers' output on, and ends all of them on a failure or a signal.

    Several starts may follow each other: `add` the workers of one, `wait` for them and
    `finish` it. All of it happens in one loop in the calling thread. That thread must
    live as long as the workers: the kernel kills them when the thread that started them
    ends.

    Args:
        display: Shows the launcher's messages.
        grace_seconds: The time between SIGTERM and SIGKILL.

    Attributes:
        first_failure: The worker of the last start that failed first, or `None`.
            Workers that the supervisor ended do not count.
        left: Whether workers of the last start have ended because they were asked to.
        failed_at: When it was found to have ended, in seconds since 1970.
        suspended: The ranks of the workers that were suspended then.
        signal: The number of the signal that the launcher got, or `None`.
        ask: Asked after `wake`: why and how the workers must be ended, or `None`.
        on_failure: Called when a worker has failed first, or the launcher got a signal.
    """

    def __init__(self, display: Display, grace_seconds: float) -> None:
        self.first_failure: WorkerProcess | None = None
        self.left = False
        self.failed_at = 0.0
        self.suspended: list[int] = []
        self._display = display
        self._grace_seconds = grace_seconds
        self._workers: list[WorkerProcess] = []
        self._outputs: dict[WorkerProcess, WorkerOutput] = {}
        self.signal: int | None = None
        self.ask: Callable[[], Ending | None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self._writable: int | None = None
        self._stopping = False
        self._leaving = False
        # `epoll` reports descriptors in the order in which they became ready, so the
        # worker that ended first is known even if this process wakes late.
        self._selector = selectors.DefaultSelector()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Handles signals inside the context, and ends all workers at its end."""
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        self._writable = writable
        self._selector.register(readable, selectors.EVENT_READ)

        def wake(number: int, frame: FrameType | None) -> None:
            os.write(writable, bytes([number]))

        in_main_thread = threading.current_thread() is threading.main_thread()
        previous = {}
        for number in _SIGNALS:
            # A signal that is ignored, as by nohup, stays ignored.
            if in_main_thread and signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, wake)
        try:
            yield
        finally:
            try:
                self.finish()
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)
                self._selector.close()
                self._writable = None
                os.close(readable)
                os.close(writable)

    def add(self, worker: WorkerProcess, output: WorkerOutput) -> None:
        """Adds a worker that was just started."""
        if not self._workers:
            self.first_failure, self.left, self.suspended = None, False, []
        self._workers.append(worker)
        self._outputs[worker] = output
        self._selector.register(worker, selectors.EVENT_READ, worker)
        for stream, pipe in worker.pipes.items():
            self._selector.register(pipe, selectors.EVENT_READ, (worker, stream))

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        """The workers of the present start."""
        return self._workers

    def watch(self, descriptor: int, act: Callable[[], None]) -> None:
        """Has `wait` and `pause` call a function whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def wait(self) -> int:
        """Waits until all workers have ended and returns the launch's exit code."""
        self._look()
        while not all(worker.ended for worker in self._workers):
            self._step()
            if self._display.broken:
                self._stop()
        if self.signal is not None:
            return 128 + self.signal
        if self.first_failure is not None:
            code = self.first_failure.exit_code or 0
            return code if code > 0 else 128 - code
        return 128 + signal.SIGPIPE if self._display.broken else 0

    def pause(
        self, seconds: float = math.inf, until: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits between two starts; returns whether no signal came.

        Args:
            seconds: How long. Defaults to no limit.
            until: Whether to end earlier; asked after `wake`. Defaults to never.
        """
        end = time.monotonic() + seconds
        while (
            self.signal is None and not until() and (left := end - time.monotonic()) > 0
        ):
            for key, _ in self._selector.select(None if left == math.inf else left):
                if key.data is not None:
                    key.data()
                elif number := os.read(key.fd, 1)[0]:
                    self._handle_signal(number)
        return self.signal is None

    def wake(self) -> None:
        """Has `wait` ask `ask`, and `pause` its `until`; any thread may call it."""
        if self._writable is not None:
            # A full pipe wakes it as well.
            with contextlib.suppress(OSError):
                os.write(self._writable, b"\0")

    def finish(self) -> None:
        """Ends a start: kills the workers that remain, also after an error here."""
        for worker in self._workers:
            if not worker.ended:
                worker.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline and any(w.ending for w in self._workers):
            self._step()
        for worker in self._workers:
            for stream, pipe in worker.pipes.items():
                self._read(worker, stream, _READS_OF_A_FULL_PIPE)
                if not pipe.closed:
                    # A process that left the group still holds the pipe's other end.
                    self._outputs[worker].feed(stream, b"")
                    self._selector.unregister(pipe)
            if worker.exit_code is None:
                self._selector.unregister(worker)
            worker.close()
        self._workers, self._outputs = [], {}
        self._stopping = self._leaving = False

    def _step(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if isinstance(key.data, WorkerProcess):
                self._handle_exit(key.data)
            elif callable(key.data):
                key.data()
            elif key.data is not None:
                worker, stream = key.data
                self._read(worker, stream)
            elif number := os.read(key.fd, 1)[0]:
                self._handle_signal(number)
            else:
                self._look()
        if any(worker.ending for worker in self._workers):
            living = living_groups()
            for worker in self._workers:
                worker.pursue(living)
        kept = self._kept_failure()
        if kept is not None and time.time() > (kept.failed_at or 0) + _ENDING_SECONDS:
            kept.show_failure()

    def _patience(self) -> float | None:
        """Returns for how many seconds to wait for an event; `None` for ever."""
        if any(worker.ending for worker in self._workers):
            return _POLL_SECONDS
        kept = self._kept_failure()
        if kept is None:
            return None
        return max(0.0, (kept.failed_at or 0.0) + _ENDING_SECONDS - time.time())

    def _kept_failure(self) -> WorkerOutput | None:
        """Returns the output with the first traceback, if no worker has ended yet.

        When one has ended, the launcher tells which traceback is shown.
        """
        kept = [
            output for output in self._outputs.values() if output.failed_at is not None
        ]
        if self._stopping or not kept or any(output.failure_shown for output in kept):
            return None
        return min(kept, key=lambda output: output.failed_at or 0.0)

    def _look(self) -> None:
        ending = None if self._stopping else self.ask()
        if ending is None or (ending.gently and self._leaving):
            return
        how = "the workers at the next update" if ending.gently else "the workers"
        self._display.print_line("stderr", f"fastnet: {ending.reason}, ending {how}")
        if not ending.gently:
            self._stop()
            return
        self._leaving = True
        for worker in self._workers:
            worker.ask_to_end()

    def _handle_signal(self, number: int) -> None:
        if self.signal is not None:
            # A second signal: kill the workers without a grace period.
            for worker in self._workers:
                worker.kill()
            return
        self.signal = number
        kept = self._kept_failure()
        if kept is not None:
            kept.show_failure()
        name = signal.Signals(number).name
        self._display.print_line("stderr", f"fastnet: {name}, ending the workers")
        self.on_failure()
        self._stop()

    def _handle_exit(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker)
        worker.note_exit()
        # The pipes hold the rest of its output.
        for stream in worker.pipes:
            self._read(worker, stream, _READS_OF_A_FULL_PIPE)
        if self._leaving and worker.exit_code == TOLD_TO_END and not self._stopping:
            self.left = True
        elif worker.exit_code != 0 and not self._stopping:
            self.first_failure, self.failed_at = worker, time.time()
            self.suspended = [w.rank for w in self._workers if w.is_suspended]
            self._display.print_line(
                "stderr",
                f"fastnet: worker {worker.rank} failed, ending the others",
            )
            self.on_failure()
            self._stop()
        # Ends its child processes too, whatever its exit code.
        worker.end(self._grace_seconds)

    def _stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.end(self._grace_seconds)

    def _read(self, worker: WorkerProcess, stream: str, times: int = 1) -> None:
        pipe = worker.pipes[stream]
        for _ in range(times):
            if pipe.closed:
                return
            try:
                data = os.read(pipe.fileno(), _READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(pipe)
                pipe.close()
            self._outputs[worker].feed(stream, data)
