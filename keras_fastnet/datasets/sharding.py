"""Which examples each worker reads."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Readers:
    """Who shares the examples.

    Attributes:
        workers: How many processes read.
        rank: Which of them this one is.
        replicas: How many devices they have together.
    """

    workers: int = 1
    rank: int = 0
    replicas: int = 1

    @classmethod
    def of(cls, strategy: Any) -> "Readers":
        """Returns the readers of a strategy.

        Args:
            strategy: A strategy of ours; `None` for one device.
        """
        if strategy is None:
            return cls()
        return cls(strategy.num_workers, strategy.rank, strategy.num_replicas_in_sync)


@dataclasses.dataclass(frozen=True)
class Share:
    """What one worker reads.

    Attributes:
        files: The files, as positions in a list of all.
        first: For each of them, the record to begin with.
        step: How many records of a file to go on by.
        records: How many records that makes.
    """

    files: Sequence[int]
    first: Sequence[int]
    step: int
    records: int


def by_files(files: int, num_workers: int) -> bool:
    """Returns whether workers read whole files: where all get as many.

    Args:
        files: How many there are.
        num_workers: How many workers there are.
    """
    return files % num_workers == 0


def share_of(
    rank: int,
    num_workers: int,
    files: int,
    records_of: Callable[[Sequence[int]], list[int]],
) -> Share:
    """Returns what a worker reads, of what all workers read once.

    It does not depend on the order in which files are read, so workers need not agree
    about that.

    Args:
        rank: The worker.
        num_workers: How many workers there are.
        files: How many files there are.
        records_of: Counts the records in files.
    """
    if by_files(files, num_workers):
        own = range(rank, files, num_workers)
        return Share(own, [0] * len(own), 1, sum(records_of(own)))
    # Every N-th of all records, counted from file to file.
    counts = records_of(range(files))
    begins = itertools.accumulate([0, *counts[:-1]])
    return Share(
        range(files),
        [(rank - begin) % num_workers for begin in begins],
        num_workers,
        len(range(rank, sum(counts), num_workers)),
    )


def describe(files: int, num_workers: int) -> str:
    """Says for people what a worker reads.

    Args:
        files: How many files there are.
        num_workers: How many workers there are.
    """
    if num_workers == 1:
        return "one worker reads all"
    if by_files(files, num_workers):
        return f"each of {num_workers} workers reads {files // num_workers} file(s)"
    return (
        f"each of {num_workers} workers reads all files, and keeps one of "
        f"{num_workers} records"
    )
