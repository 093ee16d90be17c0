"""A replica's share of one global batch.

One device computes the mean over the examples of a batch. Replicas with unequal numbers
of examples compute the same mean if each is weighed by its share:

    mean over the batch = sum over replicas r of (n_r / n) * (mean over r's examples)
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet.errors import ShardingError


class GlobalBatch(NamedTuple):
    """The input of one replica in a step of `fit`, `evaluate` or `predict`.

    Attributes:
        data: The replica's own examples, in the user's structure. A replica without
            examples has one filler: several TensorFlow kernels fail on empty batches,
            and the batch statistics of an empty batch are NaN.
        own: Number of the replica's own examples, without fillers. Scalar `int64`.
        examples: Number of examples in the whole global batch. Scalar `int64`.
        fingerprint: See `fingerprints.py`. `None` where the whole batch was at hand.
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
    for leaf in tf.nest.flatten(data):
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
        rows = tf.sparse.slice(
            leaf,
            tf.concat([[start], tf.zeros_like(rest)], 0),
            tf.concat([[stop - start], rest], 0),
        )
        # A layer is built from its input's shape, which slicing within a step forgets.
        known = [
            rows.dense_shape[axis] if size is None else size
            for axis, size in enumerate([None, *leaf.shape[1:]])
        ]
        return tf.SparseTensor(rows.indices, rows.values, tf.stack(known))
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


def local(value: Any) -> Any:
    """Returns the value of this worker's first device.

    Args:
        value: One value, or one for each device.
    """
    return getattr(value, "values", [value])[0]


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
