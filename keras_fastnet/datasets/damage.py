"""Finds records that cannot be read or decoded."""

import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_fastnet.datasets.image_ops import decode, parse
from keras_fastnet.datasets.reading import Usable
from keras_fastnet.datasets.record_files import count_records


def find_usable(
    files: Sequence[pathlib.Path], image_key: str, label_key: str
) -> tuple[list[Usable], list[str]]:
    """Reads and decodes all records of files, several files at once.

    Args:
        files: TFRecord files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.

    Returns:
        The records of each file that can be used, and a line about each of the others.
        TensorFlow cannot read on after a wrong checksum, so the rest of a file is one
        of them.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def size_of(record: tf.Tensor) -> tf.Tensor:
        encoded, _ = parse(record, image_key, label_key)
        return tf.size(decode(encoded))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda path: _usable_of(path, size_of), files))
    return [usable for usable, _ in found], [line for _, own in found for line in own]


def _usable_of(
    path: pathlib.Path, size_of: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[Usable, list[str]]:
    end, damage = count_records(path)
    omitted: dict[int, str] = {}
    records = iter(tf.data.TFRecordDataset(str(path)))
    for number in range(end):
        try:
            record = next(records)
        except tf.errors.DataLossError:
            end, damage = number, "its checksum is wrong"
            break
        if problem := _problem_with(record, size_of):
            omitted[number] = problem
    lines = [f"record {number} of {path}: {text}" for number, text in omitted.items()]
    if damage:
        lines.append(f"record {end} of {path} and all after it: {damage}")
    return Usable(end, list(omitted)), lines


def _problem_with(record: tf.Tensor, size_of: Callable[[tf.Tensor], tf.Tensor]) -> str:
    try:
        empty = int(size_of(record)) == 0
    except tf.errors.OpError as error:
        # The message follows a traceback, and precedes the node's name.
        last = error.message.split("[[{{")[0].strip().splitlines()[-1]
        return last.removeprefix("assertion failed: ").strip("[]")
    return "its image is empty" if empty else ""
