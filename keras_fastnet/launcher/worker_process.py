"""`WorkerProcess`: one worker, its process group and its exit code."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from keras_fastnet.launcher.python_command import interpreter_command

_BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))
_AT_START = str(Path(__file__).with_name("at_start"))
_STREAMS = ("stdout", "stderr")
TOLD_TO_END = 128 + signal.SIGTERM
"""Exit code of a worker that has written a last backup on SIGTERM."""


def describe_exit(code: int) -> str:
    """Returns how a process ended, as text. A negative `code` is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class WorkerProcess:
    """One worker, started in a session and process group of its own.

    The process is reaped by `close` only. Until then no other process can get its id,
    which is also the id of its group.

    Args:
        rank: The rank of the worker.
        command: The words that follow `python`.
        environment: All environment variables of the worker.
        descriptors: File descriptors that it inherits. Defaults to none.
        must_use_strategy: Whether training without a strategy raises an error in the
            worker. Defaults to `False`.

    Attributes:
        exit_code: `None` while the process runs, then its exit code, or the
            negated number of the signal that killed it.
        ended: Whether no process of the group is left.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        must_use_strategy: bool = False,
    ) -> None:
        self.rank = rank
        self.exit_code: int | None = None
        self.ended = False
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            # -I -S: the bootstrap needs neither site packages nor the user's
            # settings.
            [
                *(sys.executable, "-I", "-S", _BOOTSTRAP),
                str(os.getpid()),
                *interpreter_command(command),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_with_watch(environment) if must_use_strategy else environment,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self._exit_descriptor = _exit_descriptor(self._process.pid)
        self.pipes: dict[str, IO[bytes]] = {}
        for name in _STREAMS:
            pipe = getattr(self._process, name)
            os.set_blocking(pipe.fileno(), False)
            self.pipes[name] = pipe

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when the process ends."""
        return self._exit_descriptor

    @property
    def is_suspended(self) -> bool:
        """Whether the process is stopped, as by SIGSTOP."""
        return self.exit_code is None and _state_and_group(self.pid)[0] == "T"

    def note_exit(self) -> None:
        """Sets `exit_code`. Call it once the descriptor is readable."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if result is not None:
            exited = result.si_code == os.CLD_EXITED
            self.exit_code = result.si_status if exited else -result.si_status

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process alone: its children are needed to the end."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)

    def end(self, grace_seconds: float) -> None:
        """Sends SIGTERM to the group. `pursue` kills it after `grace_seconds`."""
        if not self.ended and self._kill_at is None:
            self._kill_at = time.monotonic() + grace_seconds
            self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the group."""
        self._kill_at = time.monotonic()
        self._signal_group(signal.SIGKILL)

    @property
    def ending(self) -> bool:
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
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Releases the pipes and the process id."""
        for pipe in self.pipes.values():
            pipe.close()
        self._process.wait()
        os.close(self._exit_descriptor)

    def _signal_group(self, number: int) -> None:
        # Popen returns after setsid, so the group exists from now until the process is
        # reaped.
        os.killpg(self.pid, number)


def _with_watch(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python imports `at_start/sitecustomize.py`."""
    others = environment.get("PYTHONPATH")
    path = f"{_AT_START}{os.pathsep}{others}" if others else _AT_START
    return {**environment, "PYTHONPATH": path}


def living_groups() -> set[int]:
    """Returns the process groups with at least one process that is not a zombie."""
    groups = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
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


def _exit_descriptor(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Linux before 5.3, or forbidden in this container. A thread waits instead. If
        # two workers end at almost the same time, it may report the second first.
        pass
    readable, writable = os.pipe()

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writable)

    threading.Thread(target=wait, daemon=True).start()
    return readable
