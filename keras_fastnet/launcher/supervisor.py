"""Waits for the workers of one start, and ends them together."""

import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from keras_fastnet.launcher.worker_process import WorkerProcess, living_groups

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end the workers."""
_LOOK_SECONDS = 0.1
# Between SIGTERM and SIGKILL. After a failure the others wait in a collective, and
# close files at most. After a signal to the launcher `BackupAndRestore` ends the update
# and writes a backup; a second Ctrl-C ends the wait.
_FAILURE_SECONDS = 5.0
_SIGNAL_SECONDS = 30.0
# A worker that has failed may still finish writing a backup. Then it must end, even if
# a thread of its program does not.
_LINGER_SECONDS = 30.0


class Signals:
    """The signals that this process has got while it watches them.

    Attributes:
        received: Their numbers, in their order.
    """

    def __init__(self) -> None:
        self.received: list[int] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which Ctrl-C, SIGTERM and SIGHUP are noted."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        previous = {}
        for number in SIGNALS if in_main_thread else ():
            # A signal that is ignored, as by nohup, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    def pause(self, seconds: float) -> None:
        """Waits, unless a signal has come or comes.

        Args:
            seconds: How long.
        """
        end = time.monotonic() + seconds
        while not self.received and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)


class Supervisor:
    """Watches the workers of one start.

    The thread that has started them must live as long as they do: the kernel kills them
    when it ends.

    Args:
        workers: The workers.
        failure_files: The file of each worker in which it records its exception.
        signals: The signals to this process, which end the workers.
        look: Called ten times a second.

    Attributes:
        first: The worker that failed first, or `None`. Workers that the supervisor
            has ended do not count.
        failed_at: When it was found to have failed, in seconds since 1970.
        suspended: The ranks of the workers that were suspended then.
    """

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        failure_files: Sequence[Path],
        signals: Signals,
        look: Callable[[], None],
    ) -> None:
        self.first: WorkerProcess | None = None
        self.failed_at = 0.0
        self.suspended: list[int] = []
        self._workers = workers
        self._failure_files = failure_files
        self._signals = signals
        self._handled = 0
        self._look = look
        self._stopping = False

    def wait(self) -> None:
        """Waits until all workers and their child processes have ended."""
        without_descriptor = [w for w in self._workers if w.exit_descriptor is None]
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.exit_descriptor is not None:
                    selector.register(
                        worker.exit_descriptor, selectors.EVENT_READ, worker
                    )
            while not all(worker.ended for worker in self._workers):
                # `epoll` reports descriptors in the order in which they became ready:
                # the worker that ended first is known even if this process wakes late.
                ready = [key.data for key, _ in selector.select(_LOOK_SECONDS)]
                for worker in (*ready, *without_descriptor):
                    if worker.exit_code is None and worker.has_exited():
                        if worker.exit_descriptor is not None:
                            selector.unregister(worker.exit_descriptor)
                        self._handle_exit(worker)
                self._look()
                self._handle_signals()
                self._end_lingering()
                if any(worker.is_ending for worker in self._workers):
                    living = living_groups()
                    for worker in self._workers:
                        worker.pursue(living)

    def _handle_exit(self, worker: WorkerProcess) -> None:
        if worker.exit_code != 0:
            self._fail(worker)
        # Ends its child processes too, whatever its exit code.
        worker.end(_FAILURE_SECONDS)

    def _fail(self, worker: WorkerProcess) -> None:
        if self._stopping:
            return
        self.first, self.failed_at = worker, time.time()
        self.suspended = [w.rank for w in self._workers if w.is_suspended]
        self._end_all(_FAILURE_SECONDS)

    def _end_all(self, grace_seconds: float) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.end(grace_seconds)

    def _handle_signals(self) -> None:
        if len(self._signals.received) > self._handled:
            self._handled = len(self._signals.received)
            name = signal.Signals(self._signals.received[0]).name
            if self._handled == 1:
                print(
                    f"fastnet: {name}, ending the workers; a second one kills them",
                    file=sys.stderr,
                    flush=True,
                )
            self._end_all(_SIGNAL_SECONDS)
            if self._handled > 1:
                # At the second signal there is no grace period.
                for worker in self._workers:
                    if not worker.ended:
                        worker.kill()

    def _end_lingering(self) -> None:
        for worker, path in zip(self._workers, self._failure_files, strict=True):
            if worker.exit_code is not None or not path.exists():
                continue
            if time.time() > path.stat().st_mtime + _LINGER_SECONDS:
                self._fail(worker)
