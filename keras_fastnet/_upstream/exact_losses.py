"""What a replica's part of a loss is, in either Keras."""

from typing import Any

import tensorflow as tf

from keras_fastnet._upstream.hooked import keras_step


def refuse_scalar(values: tf.Tensor) -> None:
    """Raises for a loss of which nobody can tell a mean from a sum.

    Args:
        values: What a loss function returned, of which the mean is to be taken.

    Raises:
        ValueError: It is a scalar.
    """
    if values.shape.rank == 0:
        raise ValueError(
            "A loss function must return a value for each example, of which several "
            "replicas can take the mean. Received: one that returns a scalar. Leave "
            "out its last `mean`; or, if it is a sum over the examples, make it a "
            '`keras.losses.Loss` with `reduction="sum"`.'
        )


def sums_of_own(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over the replicas that have examples.

    Args:
        values: This replica's, within a step of Keras.
    """
    own = [keras_step().own(value) for value in values]
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, own
    )


def scaled_to_valid(masked: tf.Tensor, mask: Any) -> tf.Tensor:
    """Has the mean over all values become one over those that a mask leaves.

    Args:
        masked: Values or weights, 0 where the mask is.
        mask: Where this replica's values are valid.
    """
    counted = tf.cast(mask, tf.float32)
    total, valid = sums_of_own(
        [tf.cast(tf.size(counted), tf.float32), tf.reduce_sum(counted)]
    )
    return masked * tf.cast(tf.math.divide_no_nan(total, valid), masked.dtype)
