"""Worker processes, and a supervisor that waits for all and ends them together."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# After SIGKILL only zombies are left, which some containers never remove.
_KILLED_SECONDS = 1.0


class WorkerProcess:
    """One worker, started in a new session and process group.

    Args:
        rank: The rank of the worker.
        words: The interpreter of the worker and its arguments.
        environment: All environment variables of the worker.
        outputs: The files for stdout and stderr, or constants of `subprocess`. Defaults
            to those of this process.
        descriptors: File descriptors that it inherits. Defaults to none.

    Attributes:
        exit_code: `None` while the process runs, then its exit code, or the
            negated number of the signal that killed it.
        ended: Whether no process of the group is left.
    """

    def __init__(
        self,
        rank: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        outputs: tuple[int | BinaryIO | None, int | BinaryIO | None] = (None, None),
        descriptors: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.exit_code: int | None = None
        self.ended = False
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )

    def poll(self) -> None:
        """Updates `exit_code` and `ended`; kills the group after its grace period."""
        self.exit_code = self._process.poll()
        overtime = -1.0
        if self._kill_at is not None:
            overtime = time.monotonic() - self._kill_at
        if self.exit_code is not None and not self._signal(0):
            self.ended = True
        elif overtime >= 0.0:
            self._signal(signal.SIGKILL)
            self.ended = self.exit_code is not None and overtime > _KILLED_SECONDS

    def end(self, grace_seconds: float) -> None:
        """Sends SIGTERM to the group, which `poll` kills after `grace_seconds`."""
        if not self.ended and self._kill_at is None:
            self._kill_at = time.monotonic() + grace_seconds
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the group."""
        if not self.ended:
            self._kill_at = time.monotonic()
            self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Kills the rest of the group."""
        self.kill()
        self._process.wait()

    def _signal(self, number: int) -> bool:
        """Sends a signal to the group; returns whether the group exists."""
        # The group keeps its number as long as one of its processes exists.
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end the workers."""
LOOK_SECONDS = 0.05
# Seconds between SIGTERM and SIGKILL. After a failure the others wait in a collective,
# and at most close files. After a signal to the launcher `BackupAndRestore` ends the
# update and writes a backup; a second Ctrl-C ends the wait.
_FAILURE_SECONDS = 5.0
_SIGNAL_SECONDS = 30.0
# A failed worker may still finish writing a backup. Then it must end, even if one of
# its threads does not.
_LINGER_SECONDS = 30.0


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Returns a context in which Ctrl-C, SIGTERM and SIGHUP are recorded.

    Yields:
        The numbers of the signals received, in order.
    """
    received: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {}
    for number in SIGNALS if in_main_thread else ():
        # A signal that is ignored, as by nohup, stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda n, _: received.append(n))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Supervisor:
    """Watches the workers of one start.

    The thread that has started the workers must outlive them: the kernel kills them
    when it ends.

    Args:
        workers: The workers.
        records: The file in which each worker records its exception.
        signals: The signals to this process, which end the workers.

    Attributes:
        first: The worker that was the first to end with an error, or `None`. Workers
            that the supervisor has ended do not count.
        failed_at: The time when its failure was found, in seconds since 1970.
    """

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        records: Sequence[Path],
        signals: Sequence[int],
    ) -> None:
        self.first: WorkerProcess | None = None
        self.failed_at = 0.0
        self._workers = workers
        self._records = records
        self._signals = signals
        self._handled = 0
        self._stopping = False

    def wait(self) -> None:
        """Waits until all workers and their child processes have ended."""
        while not all(worker.ended for worker in self._workers):
            time.sleep(LOOK_SECONDS)
            for worker in self._workers:
                ran = worker.exit_code is None
                worker.poll()
                if ran and worker.exit_code is not None:
                    if worker.exit_code:
                        self._fail(worker)
                    # Ends its child processes too, with any exit code.
                    worker.end(_FAILURE_SECONDS)
            self._handle_signals()
            self._end_lingering()

    def _fail(self, worker: WorkerProcess) -> None:
        if not self._stopping:
            self.first, self.failed_at = worker, time.time()
            self._end_all(_FAILURE_SECONDS)

    def _end_all(self, grace_seconds: float) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.end(grace_seconds)

    def _handle_signals(self) -> None:
        if len(self._signals) == self._handled:
            return
        if not self._handled:
            print(
                f"fastnet: {signal.Signals(self._signals[0]).name}, ending the "
                "workers; a second signal kills them",
                file=sys.stderr,
                flush=True,
            )
        self._handled = len(self._signals)
        self._end_all(_SIGNAL_SECONDS)
        if self._handled > 1:
            for worker in self._workers:
                worker.kill()

    def _end_lingering(self) -> None:
        for worker, record in zip(self._workers, self._records, strict=True):
            running = worker.exit_code is None and record.exists()
            if running and time.time() > record.stat().st_mtime + _LINGER_SECONDS:
                self._fail(worker)
