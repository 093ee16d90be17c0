"""Losses, metrics, updates and random numbers within a step of Keras 2."""

import contextlib
import itertools
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.active_strategy import (
    FastnetStrategy,
    MicroBatchOptimizer,
    in_replica,
)
from keras_fastnet._keras.keras2 import internal
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.losses import scaled_to_valid, weigh_scalar, weigh_sum
from keras_fastnet._keras.replica_step import holds_sums, keras_step, seed_offset
from keras_fastnet._keras.wrapping import wrap

_losses_utils = internal("utils.losses_utils")
_reductions = _losses_utils.ReductionV2
_MEANS = (_reductions.AUTO, _reductions.SUM_OVER_BATCH_SIZE)


# Keras gives every replica's loss the weight 1/N, however few examples it has. Here
# losses are means over the replica's own examples, as on one device, and the gradients
# are weighed.
@wrap(
    _losses_utils,
    "scale_loss_for_distribution",
    stock=(
        "Every replica's loss has the weight 1/N, however few examples the replica has."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _as_on_one_device(original, value):
    return original(value) if keras_step() is None else value


@wrap(
    _losses_utils,
    "reduce_weighted_loss",
    stock=(
        "Sums and scalars are those of a replica, and are added up as if they were "
        "means over equal shares."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _reduce_exactly(original, values, reduction=_reductions.SUM_OVER_BATCH_SIZE):
    reduced_values = original(values, reduction)
    if keras_step() is None:
        return reduced_values
    if values.shape.rank == 0 and reduction in _MEANS:
        return weigh_scalar(values)
    return weigh_sum(reduced_values) if reduction == _reductions.SUM else reduced_values


@wrap(
    _losses_utils,
    "apply_valid_mask",
    stock=(
        "The mean over valid values is taken on each replica, which may have more "
        "or fewer of them."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _mask_exactly(original, losses, sample_weight, mask, reduction):
    if keras_step() is None or mask is None or reduction not in _MEANS:
        return original(losses, sample_weight, mask, reduction)
    masked = original(losses, sample_weight, mask, _reductions.SUM)
    return scaled_to_valid(masked, mask)


class _NotCounted:
    """Replaces a metric that is updated elsewhere."""

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""


# Keras multiplies sums by the number of replicas, to show them in a mean over the
# replicas: right for equal shares only.
@wrap(
    internal("engine.compile_utils").LossesContainer,
    "__call__",
    stock="A sum is logged times the number of replicas: right for equal shares only.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _show_exact_sums(original, losses, y_true, y_pred, *args, **kwargs):
    step = keras_step()
    if step is not None and not losses._built:
        losses.build(y_pred)
    given = [] if step is None else [loss for loss in losses._losses if loss]
    if not any(loss.reduction == _reductions.SUM for loss in given):
        return original(losses, y_true, y_pred, *args, **kwargs)
    mean, losses._total_loss_mean = losses._total_loss_mean, _NotCounted()
    try:
        total = original(losses, y_true, y_pred, *args, **kwargs)
    finally:
        losses._total_loss_mean = mean
    rows = tf.shape(tf.nest.flatten(y_true)[0])[0]
    mean.update_state(total, sample_weight=rows)
    return total


# Results of metrics within a step are those of the replica: the sums over all follow,
# in one reduction.
@wrap(
    internal("utils.metrics_utils").tf.__internal__.distribute,
    "variable_sync_on_read_context",
    stock=(
        "Results of metrics within a step are summed over the replicas, "
        "one reduction for each."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _read_own(original, *args, **kwargs):
    if keras_step() is not None:
        return contextlib.nullcontext()
    return original(*args, **kwargs)


# An optimizer that is given sums over the replicas does not sum once more.
@wrap(
    internal("optimizers.utils"),
    "all_reduce_sum_gradients",
    stock=(
        "Gradients are summed over the replicas, also where they are sums already, "
        "and without weights."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _reduce_once(original, grads_and_vars):
    if holds_sums():
        return list(grads_and_vars)
    step = keras_step()
    if step is not None:
        grads_and_vars = [
            (g if g is None else step.weigh(g), v) for g, v in grads_and_vars
        ]
    return original(grads_and_vars)


# Ours scales the loss by itself.
@wrap(
    internal("engine.training").Model,
    "_get_optimizer",
    stock=(
        "Under a policy of float16 every optimizer is wrapped to scale the loss, "
        "also one that does so itself."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _as_it_is(original, model, optimizer):
    if isinstance(optimizer, MicroBatchOptimizer):
        return optimizer
    return original(model, optimizer)


_draws = itertools.count(1)


def _place() -> int:
    """Returns a number for an operation, as TensorFlow seeds it by its place."""
    if tf.executing_eagerly():
        return next(_draws)
    return len(tf.compat.v1.get_default_graph().get_operations())


# Random streams: with one seed all replicas would drop the same units.
@wrap(
    internal("backend").RandomGenerator,
    "make_legacy_seed",
    stock="All replicas draw the same dropout masks.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _own_stream(original, generator):
    seed = original(generator)
    strategy = in_replica()
    if strategy is None:
        return seed
    context = tf.distribute.get_replica_context()
    replica = int(tf.get_static_value(context.replica_id_in_sync_group))
    if replica == 0:
        return seed
    own = _place() if seed is None else seed
    return (own + seed_offset(replica)) % 2**31


# Reading a metric's sum asks all workers for theirs. What is saved of metrics is reset
# by the next `fit`: this worker's part will do.
@wrap(
    internal("engine.base_layer").Layer,
    "save_own_variables",
    stock="Saving a metric reads its sum, for which all workers must save together.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _own_part(original, layer, store):
    variables = layer._trainable_weights + layer._non_trainable_weights
    strategies = [getattr(v, "distribute_strategy", None) for v in variables]
    ours = any(isinstance(strategy, FastnetStrategy) for strategy in strategies)
    if not ours or not isinstance(layer, keras.metrics.Metric):
        original(layer, store)
        return
    for i, variable in enumerate(variables):
        strategy: Any = variable.distribute_strategy
        store[str(i)] = strategy.experimental_local_results(variable)[0].numpy()
