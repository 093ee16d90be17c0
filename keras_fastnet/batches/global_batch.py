"""A replica's share of one global batch.

One device computes the mean over the examples of a batch. Replicas with unequal numbers
of examples compute the same mean if each is weighed by its share:

    mean over the batch = sum over replicas r of (n_r / n) * (mean over r's examples)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.protocols import Rows
from keras_fastnet.errors import ShardingError

# Fractions of a tensor's length: multiples of the golden ratio modulo 1. An even
# stride would hit the same feature of every example, such as a black corner.
_SPREAD = np.arange(1, 65) * ((5**0.5 - 1) / 2) % 1
# The hash of what tells nothing about the examples' order.
_NOTHING = np.int64(-1)


class GlobalBatch(NamedTuple):
    """The input of one replica in a step of `fit`, `evaluate` or `predict`.

    Attributes:
        data: The replica's own examples, in the user's structure. A replica without
            examples has one filler: several TensorFlow kernels fail on empty batches,
            and the batch statistics of an empty batch are NaN.
        own: Number of the replica's own examples, without fillers. Scalar `int64`.
        examples: Number of examples in the whole global batch. Scalar `int64`.
        fingerprint: See `fingerprint`. `None` where the whole batch was at hand.
        logs: Whether the step's logs are wanted, a scalar `bool` tensor: Keras takes
            those of the last step of a call. `None`: they are.
    """

    data: Any
    own: Any
    examples: Any
    fingerprint: Any = None
    logs: Any = None


def count_examples(data: Any) -> tf.Tensor:
    """Returns the number of examples in a batch.

    Args:
        data: A structure of tensors whose first axis is the batch.

    Returns:
        A scalar `int64` tensor.

    Raises:
        ShardingError: If no tensor has a batch axis.
    """
    return _rows(_first_with_examples(data))


def _first_with_examples(data: Any) -> Any:
    for leaf in _leaves(data):
        if has_examples(leaf):
            return leaf
    raise ShardingError(
        "A batch must contain at least one tensor with a batch axis. "
        f"Received: {data}. Call `dataset.batch(global_batch)`."
    )


def bounds(rows: Any, position: int, replicas: int) -> tuple[Any, Any]:
    """Returns where a share of `rows` examples begins and ends.

    Shares differ by one example at most.

    Args:
        rows: Number of examples.
        position: Which share, from 0.
        replicas: Number of shares.
    """
    return rows * position // replicas, rows * (position + 1) // replicas


def take_share(data: Any, position: int, replicas: int) -> Any:
    """Returns the contiguous examples of one replica.

    Args:
        data: The global batch.
        position: Which share, from 0.
        replicas: Number of shares.

    Returns:
        The same structure with `n // replicas` or one more examples; one filler
        if that is 0.

    Raises:
        ShardingError: If a tensor has no batch axis.
    """

    def share(leaf: Any) -> Any:
        if not has_examples(leaf):
            return leaf
        rows = _rows(leaf) if leaf.shape[0] is None else leaf.shape[0]
        start, stop = bounds(rows, position, replicas)
        if isinstance(stop, tf.Tensor):
            stop = tf.maximum(stop, start + 1)
        else:
            stop = max(stop, start + 1)
        return _sliced(leaf, start, stop)

    return tf.nest.map_structure(share, data)


def rows_of(data: Any, start: int, stop: int) -> Any:
    """Returns some of a batch's examples.

    Args:
        data: The batch.
        start: The first.
        stop: The one after the last.
    """
    return tf.nest.map_structure(
        lambda leaf: _sliced(leaf, start, stop) if has_examples(leaf) else leaf, data
    )


def static_rows(data: Any) -> Any:
    """Returns the number of examples in a batch, fillers included.

    Args:
        data: A batch.

    Returns:
        An integer; `None` if it is known only when the batch is computed.

    Raises:
        ShardingError: If no tensor has a batch axis.
    """
    return _first_with_examples(data).shape[0]


def _sliced(leaf: Any, start: Any, stop: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        return tf.sparse.slice(
            leaf,
            tf.concat([[start], tf.zeros_like(rest)], 0),
            tf.concat([[stop - start], rest], 0),
        )
    return leaf[start:stop]


def fill_if_empty(data: Any) -> Any:
    """Gives an empty batch one filler example, all zeros.

    Args:
        data: A batch of dense tensors, outside of a `tf.function`.

    Returns:
        The batch itself if it has examples.
    """

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.shape[0] != 0:
            return leaf
        return tf.zeros([1, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(fill, data)


def with_examples(data: Any, position: int, replicas: int) -> GlobalBatch:
    """Returns one replica's share of a global batch.

    Args:
        data: The global batch.
        position: Which share, from 0.
        replicas: Number of shares.
    """
    # A step that is not traced gets arrays from `train_on_batch`.
    data = tf.nest.map_structure(values.as_tensor, data)
    examples = count_examples(data)
    start, stop = bounds(examples, position, replicas)
    return GlobalBatch(
        data=take_share(data, position, replicas),
        own=stop - start,
        examples=examples,
    )


def joined(batches: list[Any]) -> Any:
    """Returns one batch with the examples of several.

    Args:
        batches: Batches of one structure, outside of a `tf.function`.
    """

    def join(*leaves: Any) -> Any:
        if not has_examples(leaves[0]):
            return leaves[0]
        if isinstance(leaves[0], tf.SparseTensor):
            return tf.sparse.concat(0, list(leaves))
        return tf.concat(leaves, 0)

    return tf.nest.map_structure(join, *batches)


def dealt_evenly(batches: list[Any]) -> list[Any]:
    """Returns as many batches with the same examples, which differ by one at most.

    Args:
        batches: Batches of one structure, outside of a `tf.function`.
    """
    counts = [int(count_examples(batch)) for batch in batches]
    if max(counts) - min(counts) < 2:
        return batches
    together = joined([batch for batch, n in zip(batches, counts, strict=True) if n])
    return [
        rows_of(together, *bounds(sum(counts), position, len(batches)))
        for position in range(len(batches))
    ]


def joined_shares(shares: list[GlobalBatch]) -> GlobalBatch:
    """Returns a replica's share of the global batch that is made of several.

    Args:
        shares: Its share of each of them.
    """
    # Not the fillers.
    with_examples = [share.data for share in shares if share.own > 0]
    return GlobalBatch(
        data=joined(with_examples or [shares[0].data]),
        own=tf.add_n([share.own for share in shares]),
        examples=tf.add_n([share.examples for share in shares]),
        fingerprint=shares[0].fingerprint,
    )


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
    return tf.stack([_mark(leaf, text) for leaf in _leaves(data)])


def fingerprint_of_rows(leaves: Sequence[Rows | None], rows: tf.Tensor) -> tf.Tensor:
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


def local(value: Any) -> Any:
    """Returns the value of this worker's first device.

    Args:
        value: One value, or one for each device.
    """
    return getattr(value, "values", [value])[0]


def _leaves(data: Any) -> list[Any]:
    return tf.nest.flatten(data)


def without_optionals(data: Any) -> Any:
    """Returns a batch with `None` for the inputs that its generator left out.

    Keras represents them by empty optionals, and finds none within `PerReplica` values.

    Args:
        data: One replica's batch.
    """
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )


def has_examples(leaf: Any) -> bool:
    """Returns whether a part of a batch has a row for each example.

    Args:
        leaf: A tensor, or another element of the batch.

    Raises:
        ShardingError: If it is a scalar.
    """
    if leaf is None or isinstance(leaf, tf.experimental.Optional):
        return False
    if leaf.shape.rank == 0:
        raise ShardingError(
            "Every tensor of a batch must have the batch as its first axis. "
            f"Received a scalar: {leaf}. Call `dataset.batch(global_batch)`."
        )
    return True


def _rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(out_type=tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]
