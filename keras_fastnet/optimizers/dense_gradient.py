"""Converts sparse gradients into dense ones."""

from typing import Any

import tensorflow as tf


def dense(gradient: Any) -> Any:
    """Returns a gradient as a dense tensor.

    Args:
        gradient: A tensor, `tf.IndexedSlices` or `None`.

    Returns:
        For `tf.IndexedSlices`, the dense tensor, with rows of the same index added up;
        any other gradient unchanged.

    Example:

    >>> slices = tf.IndexedSlices(
    ...     tf.constant([[1.0], [2.0], [4.0]]), tf.constant([0, 2, 0]), (3, 1)
    ... )
    >>> dense(slices).numpy().ravel().tolist()
    [5.0, 0.0, 2.0]
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(
        gradient.values, gradient.indices, gradient.dense_shape[0]
    )
