"""`WorkerProcess`: one worker, its process group and its exit code."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

# After SIGKILL only zombies are left, which some containers never remove.
_KILLED_SECONDS = 1.0


class WorkerProcess:
    """One worker, started in a session and process group of its own.

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
        """Kills what is left of the group."""
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
