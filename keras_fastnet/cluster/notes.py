"""What the workers were doing, and the messages that name those who are late."""

import time
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from keras_fastnet.text import count, listed

# What Keras's loop notes while a step runs.
_IN_A_STEP = "epoch {}, step {}"

Waits = Literal["", "step", "outside"]


class Note(NamedTuple):
    """What a worker is doing.

    Attributes:
        text: A text, with `{}` for each number.
        numbers: The numbers.
        since: When it began, in seconds since 1970.
        waits: Where it has waited for some seconds: in a sum of a `"step"`, or
            `"outside"` of steps; empty if it does not wait.
    """

    text: str
    numbers: Sequence[int]
    since: float
    waits: Waits

    @property
    def doing(self) -> str:
        """The text with its numbers."""
        return self.text.format(*self.numbers)


Notes = Mapping[int, Note]
"""The notes that are known, by rank."""


def last_seen(notes: Notes, workers: int) -> str:
    """Returns what each worker was doing last, as a text.

    Args:
        notes: The notes.
        workers: Number of workers.
    """
    ranks: dict[str, list[int]] = {}
    for rank, note in sorted(notes.items()):
        doing = f"{note.doing}, waiting for others" if note.waits else note.doing
        ranks.setdefault(doing, []).append(rank)
    told = []
    for doing, alike in ranks.items():
        seconds = max(time.time() - notes[rank].since for rank in alike)
        told.append(f"{listed('rank', alike)}: {doing}, for {seconds:.0f} s")
    if len(notes) < workers:
        told.append("not known of the others")
    return f"Last seen: {'; '.join(told)}"


def late(notes: Notes, workers: int, wait_timeout: float) -> str:
    """Returns the message about a wait that took too long.

    Args:
        notes: The notes.
        workers: Number of workers.
        wait_timeout: The limit, in seconds.
    """
    ranks = [r for r in range(workers) if r not in notes or not notes[r].waits]
    found = "the workers wait for one another in different calls"
    look = "Look at what each was doing"
    if ranks:
        found = f"{listed('rank', ranks)} {'is' if len(ranks) == 1 else 'are'} late"
        look = f"Look at the output of {listed('rank', ranks)}"
    return (
        f"No worker may let others wait for longer than `wait_timeout` = "
        f"{wait_timeout:g} s. Received: {found}. {last_seen(notes, workers)}. {look}, "
        "and for code that depends on the rank: all workers must make the same calls. "
        "If one of them needs more time, as for saving or reading data, pass a larger "
        "`wait_timeout` to the strategy."
    )


def gone(ranks: Sequence[int], notes: Notes, workers: int) -> str:
    """Returns the message about workers that do not answer.

    Args:
        ranks: Those workers.
        notes: The notes.
        workers: Number of workers.
    """
    return (
        "All workers must run until the training has ended. Received: "
        f"{listed('rank', ranks)} {'does' if len(ranks) == 1 else 'do'} not answer: "
        f"ended, suspended, or cut off from the network. {last_seen(notes, workers)}. "
        f"Look at the output of {listed('rank', ranks)}, and start all workers again."
    )


def ended(rank: int, how: str) -> str:
    """Returns the message about a worker that ends before the others.

    Args:
        rank: The worker.
        how: How it ends: completes "rank 1".
    """
    return (
        f"All workers must run until the training has ended. Received: rank {rank} "
        f"{how}. Look at its output, and for what depends on the rank in the script."
    )


def unequal_steps(ranks: Sequence[int], step: Note, notes: Notes, workers: int) -> str:
    """Returns the message about workers that have left the loop of the others.

    Args:
        ranks: Those workers.
        step: The note of the step in which they are missing.
        notes: The notes.
        workers: Number of workers.
    """
    found = f"{listed('rank', ranks)} left the loop of the others"
    if step.text == _IN_A_STEP:
        batches = count(step.numbers[1] - 1, "batch", "batches")
        found = f"the data of {listed('rank', ranks)} ended after {batches}"
    return (
        f"All workers must take equally many steps. Received: {found}. "
        f"{last_seen(notes, workers)}. Give all workers data of the same length, or "
        "state `steps_per_epoch`, and look for code that depends on the rank."
    )
