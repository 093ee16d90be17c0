"""`WorkerProcess`: one worker, its process group and its exit code."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO


class WorkerProcess:
    """One worker, started in a session and process group of its own.

    The process is reaped by `close` only. Until then no other process can get its id,
    which is also the id of its group.

    Args:
        rank: The rank of the worker.
        words: The interpreter of the worker and its arguments.
        environment: All environment variables of the worker.
        output: Receives stdout and stderr. Defaults to `None`: those of this process.
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
        output: BinaryIO | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.exit_code: int | None = None
        self.ended = False
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self.exit_descriptor: int | None = None
        # Missing before Linux 5.3, or forbidden in this container.
        with contextlib.suppress(AttributeError, OSError):
            self.exit_descriptor = os.pidfd_open(self.pid)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    @property
    def is_suspended(self) -> bool:
        """Whether the process is stopped, as by SIGSTOP."""
        return self.exit_code is None and _state_and_group(self.pid)[0] == "T"

    def has_exited(self) -> bool:
        """Returns whether the process has ended, and sets `exit_code` if it has."""
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        result = os.waitid(os.P_PID, self.pid, options)
        if result is None:
            return False
        exited = result.si_code == os.CLD_EXITED
        self.exit_code = result.si_status if exited else -result.si_status
        return True

    def end(self, grace_seconds: float) -> None:
        """Sends SIGTERM to the group. `pursue` kills it after `grace_seconds`."""
        if not self.ended and self._kill_at is None:
            self._kill_at = time.monotonic() + grace_seconds
            # Popen returns after setsid, so the group exists until `close`.
            os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the group."""
        self._kill_at = time.monotonic()
        os.killpg(self.pid, signal.SIGKILL)

    @property
    def is_ending(self) -> bool:
        """Whether the group got SIGTERM or SIGKILL and a process of it is left."""
        return self._kill_at is not None and not self.ended

    def pursue(self, living: set[int]) -> None:
        """Updates `ended`, and kills the group if its grace period is over.

        Args:
            living: The groups that have living processes.
        """
        if self.exit_code is not None and self.pid not in living:
            self.ended = True
        elif self._kill_at is not None and time.monotonic() >= self._kill_at:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills what is left of the group, and releases the process id."""
        if not self.ended:
            self.kill()
        self._process.wait()
        if self.exit_descriptor is not None:
            os.close(self.exit_descriptor)


def living_groups() -> set[int]:
    """Returns the process groups with at least one process that is not a zombie."""
    groups = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            state, group = _state_and_group(int(entry.name))
            if state not in "ZX":
                groups.add(group)
    return groups


def _state_and_group(pid: int) -> tuple[str, int]:
    """Returns a process's state, X if it has ended, and its process group."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X", 0
    # The name, in parentheses, may itself hold spaces and parentheses.
    state, _, group, *_ = status.rpartition(")")[2].split()
    return state, int(group)
