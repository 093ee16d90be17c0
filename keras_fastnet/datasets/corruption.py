"""Finds records that cannot be read or decoded."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_fastnet.datasets.image_ops import decode, parse
from keras_fastnet.datasets.record_files import (
    RecordSpan,
    find_spans,
    in_threads,
    read_record,
)


class CorruptRecord(NamedTuple):
    """A record that cannot be read or decoded.

    Attributes:
        file: Its file.
        record: Its number in the file, from 0.
        reason: Why it cannot be used.
    """

    file: pathlib.Path
    record: int
    reason: str

    def __str__(self) -> str:
        return f"record {self.record} of {self.file}: {self.reason}"


class Examination(NamedTuple):
    """The corrupt and intact records of a file.

    Attributes:
        corrupt: The corrupt records.
        intact: The spans of the others.
    """

    corrupt: list[CorruptRecord]
    intact: list[RecordSpan]


def examine(
    files: Sequence[pathlib.Path], image_key: str, label_key: str
) -> list[Examination]:
    """Reads and decodes all records of files, several files at once.

    Args:
        files: TFRecord files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.

    Returns:
        An examination of each file.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def size_of(record: tf.Tensor) -> tf.Tensor:
        encoded, _ = parse(record, image_key, label_key)
        return tf.size(decode(encoded))

    def examine_file(path: pathlib.Path) -> Examination:
        corrupt, intact = [], []
        spans, damage = find_spans(path)
        # TensorFlow verifies checksums much faster, but stops at the first wrong one.
        records = iter(tf.data.TFRecordDataset(str(path)))
        stopped = False
        for span in spans:
            try:
                if not stopped:
                    record = next(records)
            except tf.errors.DataLossError:
                stopped = True
            if stopped:
                record = read_record(path, span)
            reason = "its checksum is wrong"
            if record is not None:
                reason = _problem_with(record, size_of)
            if reason:
                corrupt.append(CorruptRecord(path, span.record, reason))
            else:
                intact.append(span)
        if damage:
            reason = f"{damage}, and nothing after it can be read"
            corrupt.append(CorruptRecord(path, len(spans), reason))
        return Examination(corrupt, intact)

    return in_threads(examine_file, files, os.cpu_count() or 1)


def _problem_with(
    record: tf.Tensor | bytes, size_of: Callable[[Any], tf.Tensor]
) -> str:
    try:
        empty = int(size_of(record)) == 0
    except tf.errors.OpError as error:
        # The message follows a traceback, and precedes the node's name.
        last = error.message.split("[[{{")[0].strip().splitlines()[-1]
        return last.removeprefix("assertion failed: ").strip("[]")
    return "its image is empty" if empty else ""
