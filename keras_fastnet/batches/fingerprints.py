"""Hashes of batches, by which workers see that they read the same data in one order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet.batches.global_batch import GlobalBatch, count_examples, local

# Fractions of a tensor's length: multiples of the golden ratio modulo 1. An even
# stride would hit the same feature of every example, such as a black corner.
_SPREAD = np.arange(1, 65) * ((5**0.5 - 1) / 2) % 1
# The hash of what tells nothing about the examples' order.
_NOTHING = np.int64(-1)


def fingerprint(data: Any, examples: Any = None) -> tf.Tensor:
    """Returns a hash of each tensor in a batch.

    It reads a few elements only, spread over the batch. It is compared in the first
    step of an epoch.

    Args:
        data: The global batch, some of its examples, or a share of it.
        examples: Number of examples in the global batch. Defaults to those in `data`.

    Returns:
        An `int64` tensor with a hash >= 0 for each tensor in `data`, or -1 if the
        examples read are all equal, so that they tell nothing about their order.
    """
    if isinstance(data, GlobalBatch):
        return local(data.fingerprint)
    data = tf.nest.map_structure(values.as_tensor, data)
    if examples is None:
        examples = count_examples(data)
    text = tf.strings.as_string(examples)
    return tf.stack([_mark(leaf, text) for leaf in tf.nest.flatten(data)])


def fingerprint_of_rows(leaves: Sequence[Any | None], rows: tf.Tensor) -> tf.Tensor:
    """Returns the `fingerprint` of a batch, of which it reads a few elements only.

    Args:
        leaves: The arrays that batches are made of, in order.
        rows: The numbers of the rows in the global batch.
    """
    count = count_examples(rows)
    text = tf.strings.as_string(count)
    marks = []
    for leaf in leaves:
        if leaf is None:
            marks.append(_NOTHING)
            continue
        places = _places(count * leaf.features)
        columns = tf.math.floormod(places, max(leaf.features, 1))
        numbers = tf.gather(rows, places // max(leaf.features, 1))
        first = tf.broadcast_to(rows[0], tf.shape(columns))
        sample = leaf.elements(numbers, columns)
        marks.append(_hash(sample, leaf.elements(first, columns), text))
    return tf.stack(marks)


def fingerprint_of_samples(samples: list[Any], examples: tf.Tensor) -> tf.Tensor:
    """Returns a hash of each component of a source of examples.

    Args:
        samples: For each component, that of some examples of the global batch; `None`
            where they cannot be compared.
        examples: Number of examples in the global batch.

    Returns:
        As `fingerprint`.
    """
    text = tf.strings.as_string(examples)
    return tf.stack([_mark(_shortened(leaf), text) for leaf in samples])


def _shortened(leaf: Any) -> Any:
    """Returns strings by their lengths and last bytes: they may be whole files."""
    if leaf is None or leaf.dtype != tf.string:
        return leaf
    length = tf.strings.length(leaf)
    last = tf.minimum(length, 64)
    return tf.strings.join(
        [tf.strings.as_string(length), tf.strings.substr(leaf, -last, last)]
    )


def _mark(leaf: Any, examples: tf.Tensor) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        leaf = leaf.flat_values
    elif isinstance(leaf, tf.SparseTensor):
        leaf = leaf.values
    if not isinstance(leaf, tf.Tensor):
        return tf.constant(_NOTHING, tf.int64)
    flat = tf.reshape(leaf, [-1])
    features = tf.size(leaf[:1], out_type=tf.int64)
    places = _places(tf.size(flat, out_type=tf.int64))
    first = tf.gather(flat, tf.math.floormod(places, tf.maximum(features, 1)))
    return _hash(tf.gather(flat, places), first, examples)


def _places(size: tf.Tensor) -> tf.Tensor:
    """Returns which elements of a batch with so many are compared."""
    places = tf.cast(_SPREAD * tf.cast(size, tf.float64), tf.int64)
    return places[: tf.minimum(size, len(_SPREAD))]


def _hash(sample: tf.Tensor, first: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
    """Returns a hash of some elements; -1 if all examples have those of the first."""
    text = tf.strings.join([examples, tf.io.serialize_tensor(sample)])
    number = tf.strings.to_hash_bucket_fast(text, 2**62)
    return tf.where(tf.reduce_any(sample != first), number, _NOTHING)


def tell_the_same(fingerprints: list[list[int]]) -> bool:
    """Returns whether the workers' batches appear to be the same.

    One tensor with equal hashes is enough: workers may augment others with random
    numbers of their own.

    Args:
        fingerprints: The fingerprint of each worker's batch.
    """
    telling = [marks for marks in zip(*fingerprints, strict=True) if max(marks) >= 0]
    return not telling or any(len(set(marks)) == 1 for marks in telling)
