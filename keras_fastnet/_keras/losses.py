"""Weights for losses that are not means over the replica's own examples.

A replica's gradient is multiplied by its share `n_r / n` of the global batch before the
sum over the replicas. So means need nothing, and the rest is divided by the share here.
"""

from typing import Any

import tensorflow as tf

from keras_fastnet._keras.active_strategy import in_replica
from keras_fastnet._keras.replica_step import ReplicaStep, keras_step
from keras_fastnet._keras.wrapping import wrap


def weigh_scalar(value: tf.Tensor) -> tf.Tensor:
    """Returns the weighted value of a scalar that a loss function returned.

    Args:
        value: The scalar: a mean over the replica's examples, or a sum where the
            strategy was told so.
    """
    strategy = in_replica()
    if strategy is None:
        return value
    note_kind("scalar")
    scalars = strategy.fit_support.scalar_losses
    return weigh_sum(value) if scalars == "sum" else value


def note_kind(kind: str) -> None:
    """Has the strategy print once how something is taken that may mean several things.

    Args:
        kind: As of `FitSupport.note_loss`.
    """
    strategy = in_replica()
    if strategy is not None:
        strategy.fit_support.note_loss(kind)


def weigh_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the weighted value of a sum over the replica's examples.

    Args:
        value: The sum.
    """
    return _step().unweigh(value)


# A step that the user has written may ask for the gradient of a loss that is not
# reduced, which is that of its sum.
@wrap(
    tf.GradientTape,
    "gradient",
    stock=(
        "The gradient of losses by example is that of their sum over a replica, "
        "which is then weighed as a mean."
    ),
    until="TensorFlow does not add up elements of the target.",
)
def _weigh_target(
    original, tape, target, sources, output_gradients=None, *args, **kwargs
):
    # Other sources, such as inputs, are no weights, whose gradients are weighed.
    weights = any(hasattr(source, "assign") for source in tf.nest.flatten(sources))
    if weights and output_gradients is None and keras_step() is not None:
        output_gradients = tf.nest.map_structure(_weights_of, target)
    return original(tape, target, sources, output_gradients, *args, **kwargs)


def _weights_of(target: Any) -> Any:
    """Returns the weights of a loss's elements: 1 for a scalar, which is a mean."""
    if not tf.is_tensor(target):
        return None
    return weigh_elements(target, tf.ones_like(target))


def weigh_elements(values: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Returns the weighted value of the sum of a tensor's elements.

    Args:
        values: The tensor. A scalar is a mean over the replica's examples, or a penalty
            that is the same on all replicas. Another tensor is one of values of the
            examples if it is as long as they are, and otherwise a penalty; a line
            says so, as neither Keras nor TensorFlow tells the two apart.
        total: The sum of its elements.
    """
    if values.shape.rank == 0:
        return total
    note_kind("elements")
    rows = tf.maximum(_step().own, 1)
    of_examples = tf.shape(values, out_type=rows.dtype)[0] == rows
    return tf.where(of_examples, weigh_sum(total), total)


def mean_over_weights(total: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the weighted value of a weighted sum, in the mean over all weights.

    Args:
        total: The weighted sum over the replica's examples.
        weight: The sum of their weights.
    """
    (weights,) = _sums_of_own([tf.cast(weight, total.dtype)])
    return weigh_sum(tf.math.divide_no_nan(total, weights))


def scaled_to_valid(masked: tf.Tensor, mask: Any) -> tf.Tensor:
    """Scales values so that their mean is the mean over the valid ones.

    Args:
        masked: Values or weights, 0 where the mask is.
        mask: Where this replica's values are valid.
    """
    counted = tf.cast(mask, masked.dtype)
    total, valid = _sums_of_own(
        [tf.cast(tf.size(counted), masked.dtype), tf.reduce_sum(counted)]
    )
    return masked * tf.math.divide_no_nan(total, valid)


def _sums_of_own(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over the replicas that have examples."""
    own = _step().own > 0
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM,
        [tf.where(own, value, tf.zeros_like(value)) for value in values],
    )


def _step() -> ReplicaStep:
    """Returns the step that a loss is computed in; its callers have looked for one."""
    step = keras_step()
    if step is None:
        raise RuntimeError("Losses are weighed in the steps of several replicas only.")
    return step
