"""Which worker of a start failed first, and why."""

import dataclasses
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from keras_fastnet.cluster.events import Event
from keras_fastnet.launcher.worker_process import TOLD_TO_END, describe_exit
from keras_fastnet.text import listed

# Signals that a program causes by its own error.
_CRASHES = tuple(
    -number
    for number in (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGTRAP,
    )
)
# The module in the name of an exception.
_MODULE = re.compile(r"^[\w.]*\.(?=\w+(:|$))")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Begins what changes in the messages of the flight recorder: how long all have waited.
_LAST_SEEN = " Last seen: "


@dataclasses.dataclass(frozen=True)
class WorkerEnd:
    """How one worker of a start ended.

    Attributes:
        rank: Its rank.
        slot: Its number among the workers of the first start, from 0.
        exit_code: Its exit code, or the negated number of the signal that killed it.
        lines: The last lines of its output.
        unseen: Those of them that were not shown, and the whole traceback of the
            exception that ended it, if that was not shown.
        exception: The line of that traceback that names the exception; empty if there
            is none.
        raised_at: When that traceback began, in seconds since 1970; `None` without one.
        last_error: The last line that it wrote to stderr, without information lines.
        events: What it told: see `keras_fastnet.cluster.events`.
        doing: What it was doing last; `None` if it did not tell.
    """

    rank: int
    slot: int
    exit_code: int | None
    lines: Sequence[str]
    unseen: Sequence[str]
    exception: str
    raised_at: float | None
    last_error: str | None
    events: Sequence[Event]
    doing: str | None

    def told(self, kind: str) -> Event | None:
        """Returns the last event of a kind; `None` if there is none."""
        found = [event for event in self.events if event["kind"] == kind]
        return found[-1] if found else None

    @property
    def error(self) -> str | None:
        """The exception that ended it, as `"RuntimeError: no data"`."""
        told = self.told("error")
        if told is not None:
            return f"{told['type']}: {told['message']}"
        return _MODULE.sub("", self.exception) or None

    @property
    def names_another(self) -> bool:
        """Whether its error is about a worker for which it waited."""
        return (self.error or "").startswith("ClusterError: ")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Which worker failed, and what is equal if the same error comes again.

    Attributes:
        rank: The worker's rank.
        slot: Its slot.
        reason: Why it failed, in some words.
        error: The error; `None` if it was not the program's, such as SIGKILL.
        position: The epoch and step; `None` if it is not known, as after a crash.
        here: Whether it was a worker of this machine.
    """

    rank: int
    slot: int
    reason: str
    error: str | None = None
    position: str | None = None
    here: bool = True


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a start failed.

    Attributes:
        worker: The worker that failed first, or that the others waited for.
        time: When its exception came, or the first worker ended, in seconds since 1970.
        suspended: The ranks of the workers that were suspended then, as by SIGSTOP.
        verdict: What the other workers found out about it; `None` if nothing.
    """

    worker: WorkerEnd
    time: float
    suspended: Sequence[int]
    verdict: str | None

    @property
    def reason(self) -> str:
        """The reason, in some words."""
        worker = self.worker
        if worker.rank in self.suspended:
            return "suspended"
        code = worker.exit_code or 0
        if code == TOLD_TO_END:
            return f"{describe_exit(code)}, after SIGTERM"
        if worker.error is not None:
            return worker.error.partition("\n")[0]
        if code > 0 and worker.last_error is not None:
            return f"{describe_exit(code)}, last line of stderr: {worker.last_error}"
        return describe_exit(code)

    @property
    def cause(self) -> "Cause":
        """What decides about a restart."""
        worker = self.worker
        code = worker.exit_code or 0
        position = worker.told("position")
        error = worker.error
        if error is None and (code in _CRASHES or 0 < code != TOLD_TO_END):
            error = f"{describe_exit(code)}: {worker.last_error if code > 0 else ''}"
            position = None
        if error is None or worker.rank in self.suspended:
            return Cause(worker.rank, worker.slot, self.reason)
        return Cause(
            worker.rank,
            worker.slot,
            self.reason,
            _ADDRESS.sub("", error.partition(_LAST_SEEN)[0]),
            position["text"] if position else None,
        )


def find_failure(
    ends: Sequence[WorkerEnd], first: int, since: float, suspended: Sequence[int]
) -> Failure:
    """Returns which worker failed, and why.

    Args:
        ends: How each worker ended, by rank.
        first: The rank of the worker that ended first with an error.
        since: When that was, in seconds since 1970.
        suspended: The ranks of the workers that were suspended then.
    """
    by_rank = {end.rank: end for end in ends}
    worker = by_rank[first]
    verdicts = [found for end in ends if (found := end.told("verdict"))]
    if suspended:
        worker = by_rank[suspended[0]]
    elif worker.names_another or (worker.error is None and worker.exit_code != 0):
        # The worker with the error may end after those that wait for it: MPI ends its
        # other ranks first.
        causes = [
            end for end in ends if _time_of_error(end) < since and not end.names_another
        ]
        worker = min(causes, key=_time_of_error, default=worker)
    verdict = min(verdicts, key=lambda told: told["time"])["text"] if verdicts else None
    return Failure(worker, min(since, _time_of_error(worker)), suspended, verdict)


def failure_lines(
    failure: Failure, ends: Sequence[WorkerEnd], log_path: Path | None
) -> list[str]:
    """Returns the launcher's message about a failure, with one traceback at most.

    Args:
        failure: The failure.
        ends: How each worker ended, by rank.
        log_path: The folder of the workers' logs; `None` if there is none.
    """
    worker = failure.worker
    ending = describe_exit(worker.exit_code or 0)
    hint = " (the kernel does this when memory runs out)" if "SIGKILL" in ending else ""
    heading = f"worker {worker.rank} failed first: {ending}{hint}"
    if failure.suspended:
        heading = (
            f"{listed('worker', failure.suspended)} "
            f"{'was' if len(failure.suspended) == 1 else 'were'} suspended, as by "
            "SIGSTOP: the others waited"
        )
    where = (
        "Pass --log-dir DIR to keep the whole output of each worker."
        if log_path is None
        else f"Its whole output: {log_path / f'rank-{worker.rank}.log'}"
    )
    lines = [f"[{worker.rank}] {line}" for line in worker.unseen]
    lines += [
        f"fastnet: worker {end.rank} failed too: {end.exception}"
        for end in ends
        if end.exception and end.rank != worker.rank
    ]
    if failure.verdict is not None:
        lines.append(f"fastnet: the others found: {failure.verdict}")
    return [
        "",
        f"fastnet: {heading}{'; last lines:' if worker.unseen else ''}",
        *lines,
        f"fastnet: the other workers were ended. {where}",
    ]


def _time_of_error(end: WorkerEnd) -> float:
    told = end.told("error")
    raised_at = told["time"] if told else end.raised_at
    return float("inf") if raised_at is None else raised_at
