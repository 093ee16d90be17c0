"""Losses, metrics, updates and random numbers within a step of Keras 3."""

from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from keras.src.metrics import reduction_metrics
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator

from keras_fastnet._keras.active_strategy import in_replica, in_scope_only
from keras_fastnet._keras.keras3.trainers import TensorFlowTrainer
from keras_fastnet._keras.losses import (
    mean_over_weights,
    scaled_to_valid,
    weigh_elements,
    weigh_scalar,
    weigh_sum,
)
from keras_fastnet._keras.replica_step import (
    compiled,
    gradients_are_sums,
    keras_step,
    summed_gradients,
)
from keras_fastnet._keras.scopes import refuse_lone_update
from keras_fastnet._keras.wrapping import wrap

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


# Keras gives every replica's loss the weight 1/N, however few examples it has. Here
# losses are means over the replica's own examples, as on one device, and the gradients
# are weighed. Outside of any replica they are means over the whole batch.
@wrap(
    keras_loss,
    "reduce_values",
    stock=(
        "Every replica's loss has the weight 1/N, however few examples the replica "
        "has; sums, scalars and weighted means are added up as if they were means over "
        "equal shares."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
def _reduce_exactly(original, values, sample_weight=None, reduction=_MEANS[0]):
    step = keras_step()
    plain = (step is None and in_scope_only() is None) or 0 in values.shape
    if plain or reduction not in (*_MEANS, "sum"):
        return original(values, sample_weight, reduction)
    total = keras.ops.sum(values)
    if reduction == "sum":
        return total if step is None else weigh_sum(total)
    if values.shape.rank == 0:
        return values if step is None else weigh_scalar(values)
    count = keras.ops.cast(tf.size(values), total.dtype)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        count = keras.ops.cast(keras.ops.sum(sample_weight), total.dtype)
        if step is not None:
            return mean_over_weights(total, count)
    return keras.ops.divide_no_nan(total, count)


@wrap(
    keras_loss,
    "unscale_loss_for_distribution",
    stock="Logs multiply every replica's loss by N, as if it had the weight 1/N.",
    until="Keras weighs each replica's loss by its examples.",
)
def _as_on_one_device(original, value):
    plain = keras_step() is not None or in_scope_only() is not None
    return value if plain else original(value)


@wrap(
    keras_loss,
    "apply_mask",
    stock=(
        "The mean over valid values is taken on each replica, which may have more "
        "or fewer of them."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
def _mask_exactly(original, sample_weight, mask, dtype, reduction):
    if keras_step() is None or mask is None or reduction not in _MEANS[:2]:
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)
    masked = original(sample_weight, mask, dtype=dtype, reduction="sum")
    return scaled_to_valid(masked, mask)


@wrap(
    TensorFlowTrainer,
    "_aggregate_additional_loss",
    stock=(
        "Losses given to `add_loss` have the weight 1/N, also sums over a replica's "
        "examples."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
def _add_exactly(original, model, loss):
    if keras_step() is None and in_scope_only() is None:
        return original(model, loss)
    total = keras.ops.sum(loss)
    return total if keras_step() is None else weigh_elements(loss, total)


# A step that the user has written gives the mean of each batch to a metric. On one
# device every batch counts once; here the replicas' shares of it add up to one.
@wrap(
    reduction_metrics.Mean,
    "update_state",
    stock=(
        "A mean that a step of the user's logs counts once for each replica, "
        "however few examples the replica has."
    ),
    until="Keras gives metrics the replica's share.",
)
def _count_by_share(original, metric, values, sample_weight=None):
    step = keras_step()
    if step is not None and sample_weight is None and not keras.ops.ndim(values):
        sample_weight = step.share
    return original(metric, values, sample_weight)


@wrap(
    base_optimizer.BaseOptimizer,
    "apply",
    stock=(
        "Each replica clips its own gradient before the sum (tensorflow#33929, "
        "horovod#1346)."
    ),
    until="Keras sums gradients over the replicas before it changes them.",
)
def _reduce_first(original, optimizer, grads, trainable_variables=None):
    refuse_lone_update(optimizer, trainable_variables)
    strategy = in_replica()
    accumulated = keras_step() is not None and any(map(_is_accumulated, grads))
    if strategy is not None and accumulated:
        strategy.fit_support.note_loss("accumulated")
    with summed_gradients(grads) as sums:
        compiled(lambda: original(optimizer, sums, trainable_variables))()


def _is_accumulated(gradient: Any) -> bool:
    """Returns whether a gradient is read from a variable, perhaps divided."""
    if isinstance(gradient, keras.Variable | tf.Variable):
        return True
    if not isinstance(gradient, tf.Tensor) or tf.executing_eagerly():
        return False
    operation = gradient.op
    while operation.type in ("Identity", "RealDiv", "Mul", "Cast"):
        operation = operation.inputs[0].op
    return operation.type == "ReadVariableOp"


@wrap(
    loss_scale_optimizer.LossScaleOptimizer,
    "apply",
    stock=(
        "Each replica tests its own gradient for overflow: the others update with "
        "infinity. Outside a replica an update raises an error, unlike with other "
        "optimizers."
    ),
    until="As for `BaseOptimizer.apply`.",
)
def _reduce_scaled_first(original, optimizer, grads, trainable_variables=None):
    strategy = in_scope_only()
    if strategy is None:
        _reduce_first(original, optimizer, grads, trainable_variables)
        return
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(trainable_variables)
        optimizer.built = True

    def update(grads):
        with gradients_are_sums():
            original(optimizer, grads, trainable_variables)

    strategy.run(update, args=(grads,))


# All replicas hold the same seed state.
@wrap(
    seed_generator.SeedGenerator,
    "next",
    stock="All replicas draw the same dropout masks.",
    until="Keras gives each replica a random stream.",
)
def _own_stream(original, generator, *args, **kwargs):
    seed = original(generator, *args, **kwargs)
    strategy = in_replica()
    return seed if strategy is None else strategy.fit_support.replica_seed(seed)
