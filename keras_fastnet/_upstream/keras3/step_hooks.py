"""Where a step computes: losses, the optimizer's update and random numbers."""

import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator

from keras_fastnet._upstream.exact_losses import (
    refuse_scalar,
    scaled_to_valid,
    sums_of_own,
)
from keras_fastnet._upstream.hooked import (
    compiled,
    in_replica,
    in_scope_only,
    keras_step,
    reduced,
)
from keras_fastnet._upstream.hooking import hook


# The weight of a replica in the mean: Keras gives every replica 1/N, however few
# examples it has.
@hook(keras_loss, "scale_loss_for_distribution")
def _weigh(original, value):
    step = keras_step()
    return original(value) if step is None else step.weigh(value)


@hook(keras_loss, "unscale_loss_for_distribution")
def _unweigh(original, value):
    step = keras_step()
    return original(value) if step is None else step.unweigh(value)


_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


# What is no mean over the examples by itself: sums, in which fillers must not count,
# means over weights, and scalars, of which nobody can tell what they are.
@hook(keras_loss, "reduce_values")
def _reduce_exactly(original, values, sample_weight=None, reduction="mean"):
    step = keras_step()
    if step is None:
        return original(values, sample_weight, reduction)
    if reduction in _MEANS:
        refuse_scalar(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weight = tf.cast(tf.reduce_sum(sample_weight), values.dtype)
        (weights,) = sums_of_own([weight])
        return tf.math.divide_no_nan(step.own(tf.reduce_sum(values)), weights)
    if reduction in _MEANS:
        return original(values, sample_weight, reduction)
    return step.own(original(values, sample_weight, reduction))


@hook(keras_loss, "apply_mask")
def _mask_exactly(original, sample_weight, mask, dtype, reduction):
    if keras_step() is None or mask is None or reduction not in _MEANS[:2]:
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)
    masked = original(sample_weight, mask, dtype=dtype, reduction="sum")
    return scaled_to_valid(masked, mask)


# The sum over replicas comes first: Keras unscales, tests for overflow and clips each
# replica's own gradients (tensorflow#33929, horovod#1346).
@hook(base_optimizer.BaseOptimizer, "apply")
@hook(loss_scale_optimizer.LossScaleOptimizer, "apply")
def _reduce_first(original, optimizer, grads, trainable_variables=None):
    with reduced(grads) as sums:
        compiled(lambda: original(optimizer, sums, trainable_variables))()


# Other optimizers update in a scope without a step too, with gradients of all examples.
@hook(loss_scale_optimizer.LossScaleOptimizer, "_tf_apply")
def _apply_in_replicas(original, optimizer, grads, trainable_variables=None):
    strategy = in_scope_only()
    if strategy is None:
        return original(optimizer, grads, trainable_variables)

    def update(grads):
        with strategy.step.with_reduced_gradients():
            original(optimizer, grads, trainable_variables)

    return strategy.run(update, args=(grads,))


@hook(tf_optimizer.TFOptimizer, "_all_reduce_sum_gradients")
def _reduce_once(original, optimizer, grads_and_vars):
    strategy = in_replica()
    if strategy is not None and strategy.step.reduced:
        return list(grads_and_vars)
    return original(optimizer, grads_and_vars)


# Random streams: all replicas hold the same seed state, and so drop the same units.
@hook(seed_generator.SeedGenerator, "next")
def _own_stream(original, generator, *args, **kwargs):
    seed = original(generator, *args, **kwargs)
    strategy = in_replica()
    return seed if strategy is None else strategy.replica_seed(seed)
