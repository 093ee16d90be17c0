"""Finds records that cannot be read or decoded."""

import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_fastnet.datasets.image_ops import decode, parse


def find_usable(
    files: Sequence[pathlib.Path], image_key: str, label_key: str
) -> tuple[list[int], list[tuple[int, int]], list[str]]:
    """Reads and decodes all records of files, several files at once.

    Args:
        files: TFRecord files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.

    Returns:
        The number of records of each file that can be read, the file's index and the
        number of those among them that cannot be used, and a line about each record
        that is lost. TensorFlow cannot read on after a wrong checksum, so the rest of a
        file is one of them.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def size_of(record: tf.Tensor) -> tf.Tensor:
        encoded, _ = parse(record, image_key, label_key)
        return tf.size(decode(encoded))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda path: _usable_of(path, size_of), files))
    omitted = [(file, n) for file, (_, own, _) in enumerate(found) for n in own]
    lines = [line for _, _, own in found for line in own]
    return [end for end, _, _ in found], omitted, lines


def _usable_of(
    path: pathlib.Path, size_of: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[int, list[int], list[str]]:
    end, omitted, lines = 0, [], []
    try:
        for record in tf.data.TFRecordDataset(str(path)):
            if problem := _problem_with(record, size_of):
                omitted.append(end)
                lines.append(f"record {end} of {path}: {problem}")
            end += 1
    except tf.errors.DataLossError:
        lines.append(f"record {end} of {path} and all after it: it is damaged")
    return end, omitted, lines


def _problem_with(record: tf.Tensor, size_of: Callable[[tf.Tensor], tf.Tensor]) -> str:
    try:
        empty = int(size_of(record)) == 0
    except tf.errors.OpError as error:
        # The message follows a traceback, and precedes the node's name.
        last = error.message.split("[[{{")[0].strip().splitlines()[-1]
        return last.removeprefix("assertion failed: ").strip("[]")
    return "its image is empty" if empty else ""
