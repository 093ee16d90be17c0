"""Finding records that cannot be read or decoded."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_fastnet.datasets.image_ops import decode, parse
from keras_fastnet.datasets.record_files import (
    Place,
    find_places,
    in_threads,
    read_record,
)


class CorruptRecord(NamedTuple):
    """A record that cannot be read or decoded.

    Attributes:
        file: Its file.
        record: Its number in the file, from 0.
        reason: What is wrong with it.
    """

    file: pathlib.Path
    record: int
    reason: str

    def __str__(self) -> str:
        return f"record {self.record} of {self.file}: {self.reason}"


class Examination(NamedTuple):
    """What was found in a file.

    Attributes:
        corrupt: Its corrupt records.
        intact: Where the others are.
    """

    corrupt: list[CorruptRecord]
    intact: list[Place]


def examine(
    files: Sequence[pathlib.Path], image_key: str, label_key: str
) -> list[Examination]:
    """Reads and decodes all records of files, several files at once.

    Args:
        files: TFRecord files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.

    Returns:
        What was found in each file.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def size_of(record: tf.Tensor) -> tf.Tensor:
        encoded, _ = parse(record, image_key, label_key)
        return tf.size(decode(encoded))

    def examine_file(path: pathlib.Path) -> Examination:
        corrupt, intact = [], []
        places, damage = find_places(path)
        # TensorFlow checks sums much faster, but gives up at the first wrong one.
        records = iter(tf.data.TFRecordDataset(str(path)))
        wrong_sum = False
        for place in places:
            try:
                if not wrong_sum:
                    record = next(records)
            except tf.errors.DataLossError:
                wrong_sum = True
            if wrong_sum:
                record = read_record(path, place)
            reason = "its checksum is wrong"
            if record is not None:
                reason = _problem_with(record, size_of)
            if reason:
                corrupt.append(CorruptRecord(path, place.record, reason))
            else:
                intact.append(place)
        if damage:
            reason = f"{damage}, and nothing after it can be read"
            corrupt.append(CorruptRecord(path, len(places), reason))
        return Examination(corrupt, intact)

    return in_threads(examine_file, files, os.cpu_count() or 1)


def _problem_with(
    record: tf.Tensor | bytes, size_of: Callable[[Any], tf.Tensor]
) -> str:
    try:
        empty = int(size_of(record)) == 0
    except tf.errors.OpError as error:
        # After a traceback of ours, and before the node's name.
        return error.message.split("[[{{")[0].strip().splitlines()[-1]
    return "its image is empty" if empty else ""
