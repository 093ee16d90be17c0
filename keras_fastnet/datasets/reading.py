"""Which records a worker reads, and the dataset of them, in order."""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Files that are read in parallel in training. Fixed, as it determines the order.
_FILES_AT_ONCE = 16


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


def share_records(rank: int, num_workers: int, counts: Sequence[int]) -> Share:
    """Returns a worker's share; all shares together hold every record once.

    Workers read whole files if all get the same number of files. The shares do not
    depend on the order in which files are read, so workers need not agree on one.

    Args:
        rank: The worker's rank.
        num_workers: Number of workers.
        counts: Number of records in each file.
    """
    files = len(counts)
    if files % num_workers == 0:
        own = range(rank, files, num_workers)
        return Share(own, [0] * len(own), 1, sum(counts[file] for file in own))
    # Every N-th of all records, counted from file to file.
    begins = itertools.accumulate([0, *counts[:-1]])
    return Share(
        range(files),
        [(rank - begin) % num_workers for begin in begins],
        num_workers,
        len(range(rank, sum(counts), num_workers)),
    )


def read(
    paths: Sequence[pathlib.Path],
    ends: Sequence[int],
    omitted: Sequence[tuple[int, int]],
    share: Share,
    shuffle: tuple[int, int] | None = None,
) -> tf.data.Dataset:
    """Returns the dataset of a worker's records.

    Args:
        paths: All files.
        ends: Number of records that can be read, for each file.
        omitted: Records that are left out: the file's index, and the record's number.
        share: The worker's share.
        shuffle: A seed, and the size of the shuffle buffer in records. Defaults to
            `None`: file by file.

    Returns:
        A dataset of strings, the records.
    """
    names = tf.constant([str(path) for path in paths])
    lengths = tf.constant(ends, tf.int64)

    def records_of(file: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(names[file]).take(lengths[file]).enumerate()
        if omitted:
            pairs = tf.constant(omitted, tf.int64)
            records = records.filter(
                lambda number, _: (
                    ~tf.reduce_any(
                        tf.reduce_all(pairs == tf.stack([file, number]), axis=1)
                    )
                )
            )
        return records.shard(share.step, first).map(lambda _, record: record)

    def files() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(
            (np.array(share.files, np.int64), np.array(share.first, np.int64))
        )

    if shuffle is None:
        return files().flat_map(records_of)
    seed, buffer = shuffle

    def epoch(seeds: tf.Tensor) -> tf.data.Dataset:
        # After `tf.random.set_seed(0)`, TensorFlow would compare a tensor seed with 0,
        # which fails.
        tf.compat.v1.get_default_graph().seed = 1
        shuffled = files().shuffle(len(share.files), seeds[0], False)
        records = shuffled.interleave(
            records_of,
            cycle_length=_FILES_AT_ONCE,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return records.shuffle(buffer, seeds[1], False)

    # Not `shuffle(reshuffle_each_iteration=True)` twice: an iterator that is created
    # but not read would count as an epoch for the outer one alone.
    seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    return seeds.batch(2).take(1).flat_map(epoch)
