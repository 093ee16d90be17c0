"""Which records a worker reads, and the dataset of them, in order."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.datasets.record_files import RecordSpan

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


def share_records(
    rank: int,
    num_workers: int,
    files: int,
    count: Callable[[Sequence[int]], list[int]],
) -> Share:
    """Returns a worker's share; all shares together hold every record once.

    Workers read whole files if all get the same number of files. The shares do not
    depend on the order in which files are read, so workers need not agree on one.

    Args:
        rank: The worker's rank.
        num_workers: Number of workers.
        files: Number of files.
        count: Counts the records in files.
    """
    if files % num_workers == 0:
        own = range(rank, files, num_workers)
        return Share(own, [0] * len(own), 1, sum(count(own)))
    # Every N-th of all records, counted from file to file.
    counts = count(range(files))
    begins = itertools.accumulate([0, *counts[:-1]])
    return Share(
        range(files),
        [(rank - begin) % num_workers for begin in begins],
        num_workers,
        len(range(rank, sum(counts), num_workers)),
    )


def read(
    paths: Sequence[pathlib.Path],
    share: Share,
    intact: Mapping[int, Sequence[RecordSpan]],
    shuffle: tuple[int, int] | None = None,
) -> tf.data.Dataset:
    """Returns the dataset of a worker's records.

    Args:
        paths: All files.
        share: The worker's share.
        intact: Positions of the intact records, for each file that has corrupt ones.
        shuffle: A seed, and the size of the shuffle buffer in records. Defaults to
            `None`: file by file.

    Returns:
        A dataset of the file's index (int64), the record's number in it (int64), and
        the record (string): scalars.
    """
    names = tf.constant([str(path) for path in paths])
    sizes = tf.constant([path.stat().st_size for path in paths], tf.int64)
    is_whole = tf.constant([file not in intact for file in range(len(paths))])
    spans = _spans_by_file(len(paths), intact) if intact else None

    def records_of(file: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        name = names[file]

        def one_record(number: Any, offset: Any, length: Any) -> tf.data.Dataset:
            rest = sizes[file] - offset - length
            # Reads one record, with all bytes around it as header and footer.
            record = tf.data.FixedLengthRecordDataset(name, length, offset, rest)
            return record.map(lambda content: (number, content))

        whole = tf.boolean_mask(name[None], is_whole[file][None])
        records = tf.data.TFRecordDataset(whole).enumerate()
        if spans is not None:
            numbers, offsets, lengths = tf.unstack(spans[file], axis=1)
            found = tf.data.Dataset.from_tensor_slices((numbers, offsets, lengths))
            records = records.concatenate(found.flat_map(one_record))
        if share.step > 1:
            records = records.shard(share.step, first)
        return records.map(lambda number, record: (file, number, record))

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


def _spans_by_file(
    files: int, intact: Mapping[int, Sequence[RecordSpan]]
) -> tf.RaggedTensor:
    """Returns `(files, records, 3)`, without records for intact files."""
    spans = [span for file in range(files) for span in intact.get(file, ())]
    return tf.RaggedTensor.from_row_lengths(
        np.array(spans, np.int64).reshape(-1, len(RecordSpan._fields)),
        [len(intact.get(file, ())) for file in range(files)],
    )
