"""Which workers are started again, after a failure or on request, and when."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from keras_fastnet.launcher.failure import Cause, WorkerEnd
from keras_fastnet.text import count

# Until ports and memory are free. It doubles with every failure without a new backup in
# between, so that a machine short of memory is not kept busy by starts.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
# A slot is given up after so many failures of it without a new backup in between.
_FAILURES_OF_A_SLOT = 2

Backup = Mapping[str, Any]


class Restarts:
    """Decides about restarts, from all failures so far.

    Args:
        workers: The number of workers of the first start.
        allowed: The number of restarts allowed.
        least: The number of workers below which no slot is given up.
        most: The number of slots. Defaults to `None`: `workers`.
        where: What the log adds to the number of workers. Defaults to `""`.

    Attributes:
        slots: The slots of the next start, by the worker's rank.
        allowed: The number of restarts allowed.
        least: As passed.
        most: The number of slots.
        made: The number of restarts, without those that `resize` has led to.
        pause: Seconds to wait before the next start.
        backup: The newest backup that the workers have told of; `None` without one.
        knows_backups: Whether the program uses `BackupAndRestore`.
        notes: What was decided after the last failure, for the log.
    """

    def __init__(
        self,
        workers: int,
        allowed: int,
        least: int,
        most: int | None = None,
        where: str = "",
    ) -> None:
        self.slots = list(range(workers))
        self.made = 0
        self.pause = _FIRST_PAUSE
        self.backup: Backup | None = None
        self.knows_backups = False
        self.notes: list[str] = []
        self.allowed = allowed
        self.least = least
        self.most = most or workers
        self._where = where
        self._failures_of: Counter[int] = Counter()
        self._backup_before: Backup | None = None
        self._seen: set[tuple[str, str | None]] = set()
        self._told_of_the_beginning = False

    def learn(self, ends: Sequence[WorkerEnd]) -> None:
        """Takes note of what the workers of a start told about backups.

        Args:
            ends: How they ended.
        """
        told = [event for end in ends for event in end.events]
        for event in sorted(told, key=lambda event: event["time"]):
            if event["kind"] in ("fit", "backup"):
                self.knows_backups = True
                self.backup = event["backup"]
            elif event["kind"] == "removed":
                self.backup = None

    def refusal(self, cause: Cause) -> str | None:
        """Takes note of a failure; returns why the workers are not started again.

        Args:
            cause: What was the cause of the failure.

        Returns:
            The reason, or `None` if they are to be started again. `slots`, `pause` and
            `notes` are then those of the next start.
        """
        self.notes = []
        if not self.allowed:
            return "--max-restarts is 0"
        where = cause.position or _position(self.backup)
        if cause.error is not None and (cause.error, where) in self._seen:
            return (
                f"`{cause.reason}` came a second time "
                f"({where or 'without a backup in between'}), and would come again"
            )
        if self.made >= self.allowed:
            return f"--max-restarts allows {count(self.allowed, 'restart')}"
        if cause.error is not None:
            self._seen.add((cause.error, where))
        progress = self.backup != self._backup_before
        self._backup_before = self.backup
        if progress or not self.made:
            self._failures_of.clear()
            self.pause = _FIRST_PAUSE
        else:
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        if cause.here:
            self._failures_of[cause.slot] += 1
            self._give_up(cause)
        self.made += 1
        self.notes.append(
            f"restart {self.made} of {self.allowed} in {self.pause:g} s, with "
            f"{count(len(self.slots), 'worker')}{self._where}, {self._from()}"
        )
        return None

    def resize(self, workers: int) -> None:
        """Changes `slots`, also back to slots that were given up.

        Args:
            workers: The number of workers on this machine, from `least` to `most`.
        """
        kept = self.slots[:workers]
        others = [slot for slot in range(self.most) if slot not in self.slots]
        back = others[: workers - len(kept)]
        for slot in back:
            del self._failures_of[slot]
        self.slots = sorted(kept + back)
        self.notes = [
            f"continuing with {count(workers, 'worker')}{self._where}, {self._from()}"
        ]

    def _give_up(self, cause: Cause) -> None:
        failures = self._failures_of[cause.slot]
        if failures < _FAILURES_OF_A_SLOT or len(self.slots) <= self.least:
            return
        if cause.slot not in self.slots:
            return  # Left out by `resize`.
        self.slots.remove(cause.slot)
        self.notes.append(
            f"worker {cause.rank} failed {failures} times without a new backup in "
            f"between: training continues with {count(len(self.slots), 'worker')}"
        )

    def _from(self) -> str:
        if self.backup is not None:
            return (
                f"from {self.backup['file']} "
                f"({count(self.backup['updates'], 'update')})"
            )
        text = "from the beginning of the training"
        if self._told_of_the_beginning:
            return text
        self._told_of_the_beginning = True
        if self.knows_backups:
            return f"{text}: there is no backup"
        return (
            f"{text}: the workers have told of no "
            "`keras_fastnet.callbacks.BackupAndRestore`, which would resume it"
        )


def _position(backup: Backup | None) -> str | None:
    if backup is None:
        return None
    return f"after {count(backup['updates'], 'update')}"


def divided(workers: int, machines: Sequence[Mapping[str, int]]) -> list[int]:
    """Returns the new number of workers of each machine.

    The last machines lose workers first; the first machines get more first.

    Args:
        workers: The number on all machines, within what they allow together.
        machines: The number of workers of each, `least` and `most`.

    Example:

    >>> divided(2, [{"workers": 2, "least": 1, "most": 2}] * 2)
    [1, 1]
    >>> divided(3, [{"workers": 1, "least": 1, "most": 2}] * 2)
    [2, 1]
    """
    numbers = [machine["workers"] for machine in machines]
    for index in reversed(range(len(numbers))):
        surplus = max(0, sum(numbers) - workers)
        least = machines[index]["least"]
        numbers[index] = max(least, numbers[index] - surplus)
    for index, machine in enumerate(machines):
        missing = workers - sum(numbers)
        numbers[index] = min(machine["most"], numbers[index] + missing)
    return numbers
