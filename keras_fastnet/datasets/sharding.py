"""Shares of the examples that each worker reads."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from keras_fastnet.text import count


@dataclasses.dataclass(frozen=True)
class Readers:
    """The workers that share the examples.

    Attributes:
        workers: Number of workers.
        rank: Rank of this worker.
        replicas: Number of replicas on all workers.
    """

    workers: int = 1
    rank: int = 0
    replicas: int = 1

    @classmethod
    def of(cls, strategy: Any) -> "Readers":
        """Returns the readers of a strategy.

        Args:
            strategy: A strategy of `keras_fastnet`; `None` for one device.
        """
        if strategy is None:
            return cls()
        return cls(strategy.num_workers, strategy.rank, strategy.num_replicas_in_sync)


@dataclasses.dataclass(frozen=True)
class Share:
    """The records that one worker reads.

    Attributes:
        files: Its files, as indices into the list of all files.
        first: The first record to read, for each file.
        step: The distance between the records to read in a file.
        records: Number of records in the share.
    """

    files: Sequence[int]
    first: Sequence[int]
    step: int
    records: int


def by_files(files: int, num_workers: int) -> bool:
    """Returns whether workers read whole files: if all get the same number.

    Args:
        files: Number of files.
        num_workers: Number of workers.
    """
    return files % num_workers == 0


def share_of(
    rank: int,
    num_workers: int,
    files: int,
    records_of: Callable[[Sequence[int]], list[int]],
) -> Share:
    """Returns a worker's share; all shares together hold every record once.

    It does not depend on the order in which files are read, so workers need not agree
    on one.

    Args:
        rank: The worker's rank.
        num_workers: Number of workers.
        files: Number of files.
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
    """Returns a description of the shares, for messages.

    Args:
        files: Number of files.
        num_workers: Number of workers.
    """
    if num_workers == 1:
        return "one worker reads all files"
    if by_files(files, num_workers):
        return (
            f"each of {num_workers} workers reads {count(files // num_workers, 'file')}"
        )
    return (
        f"each of {num_workers} workers reads all files, and keeps one of "
        f"{num_workers} records"
    )
