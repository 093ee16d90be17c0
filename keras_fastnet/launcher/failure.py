"""Which worker of a start failed first, and why."""

import contextlib
import dataclasses
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from keras_fastnet.launcher.worker_process import WorkerProcess
from keras_fastnet.text import count, listed

_LAST_LINES = 20
_LAST_BYTES = 1 << 14
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The exception that ended a worker, as its `sitecustomize` has recorded it.

    Attributes:
        error: The exception, as `"RuntimeError: no data"`.
        traceback: The text of its traceback.
        time: When it came, in seconds since 1970.
        updates: The updates that the model had made; `None` if it came outside `fit`.
    """

    error: str
    traceback: str
    time: float
    updates: int | None


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a start failed.

    Attributes:
        rank: The rank of the worker that failed first.
        exit_code: Its exit code, or the negated number of the signal that killed it.
        recorded: Its exception; `None` if it recorded none, as when it is killed.
        suspended: The ranks of the workers for which it waited, as after SIGSTOP.
    """

    rank: int
    exit_code: int
    recorded: Recorded | None
    suspended: Sequence[int]

    @property
    def launch_code(self) -> int:
        """The exit code of the launch."""
        if self.exit_code > 0:
            return self.exit_code
        # A worker that does not end after its exception is killed.
        return 1 if self.recorded is not None else 128 - self.exit_code

    @property
    def repeatable(self) -> tuple[str, int | None] | None:
        """What is equal if the same exception comes at the same update.

        `None` if the failure was not an exception of the program.
        """
        if self.recorded is None or self.suspended:
            return None
        return _ADDRESS.sub("", self.recorded.error), self.recorded.updates

    @property
    def heading(self) -> str:
        """The line that names the worker and the reason."""
        if self.suspended:
            were = "was" if len(self.suspended) == 1 else "were"
            return (
                f"{listed('worker', self.suspended)} {were} suspended, as by SIGSTOP, "
                f"and worker {self.rank} has ended"
            )
        if self.recorded is not None:
            reason = self.recorded.error.partition("\n")[0]
        else:
            reason = describe_exit(self.exit_code)
        return f"worker {self.rank} failed first: {reason}"

    def repetition(self) -> str:
        """Returns why a second failure of this kind ends the launch."""
        at = "outside `fit`"
        updates = self.recorded.updates if self.recorded is not None else None
        if updates is not None:
            at = f"after {count(updates, 'update')}"
        return f"the same error came a second time {at}, and would come again"


def describe_exit(code: int) -> str:
    """Returns how a process ended, as text. A negative `code` is a signal."""
    if code >= 0:
        return f"exit code {code}"
    hint = ""
    if code == -signal.SIGKILL:
        hint = " (the kernel does this when memory runs out)"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"killed by signal {-code}"


def find_failure(
    workers: Sequence[WorkerProcess],
    files: Sequence[Path],
    first: WorkerProcess,
    failed_at: float,
    suspended: Sequence[int],
) -> Failure:
    """Returns which worker failed first, and why.

    Args:
        workers: All workers, which have ended.
        files: Where each has recorded its exception.
        first: The worker that was the first to end with an error.
        failed_at: When that was, in seconds since 1970.
        suspended: The ranks of the workers that were suspended then.
    """
    recorded = {w.rank: _read(file) for w, file in zip(workers, files, strict=True)}
    own = recorded[first.rank]
    if own is None or own.error.startswith("ClusterError: "):
        # It names another worker, or MPI has ended it. The one with the error may end
        # later than those that wait for it.
        causes = [
            (known.time, worker)
            for worker in workers
            if (known := recorded[worker.rank]) is not None
            and known.time < failed_at
            and not known.error.startswith("ClusterError: ")
        ]
        first = min(causes, key=lambda cause: cause[0], default=(0.0, first))[1]
    return Failure(
        first.rank, first.exit_code or 1, recorded[first.rank], tuple(suspended)
    )


def last_lines(path: Path) -> list[str]:
    """Returns the last lines of a file, with progress bars in their final state.

    Args:
        path: The file.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        text = file.read().decode(errors="replace")
    lines = [re.split("[\r\b]+", line.rstrip("\r"))[-1] for line in text.split("\n")]
    return [line for line in lines if line.strip()][-_LAST_LINES:]


def _read(path: Path) -> Recorded | None:
    try:
        return Recorded(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
