"""Losses, metrics, updates and random numbers within a step of Keras 3."""

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.layers.rnn import rnn
from keras.src.losses import loss as keras_loss
from keras.src.metrics import reduction_metrics
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator

from keras_fastnet._keras.keras3.trainers import TensorFlowTrainer
from keras_fastnet._keras.losses import (
    mean_over_weights,
    of_added,
    of_scalar,
    of_sum,
    scaled_to_valid,
)
from keras_fastnet._keras.protocols import in_replica, in_scope_only
from keras_fastnet._keras.replica_step import (
    compiled,
    gradients_are_sums,
    holds_sums,
    keras_step,
    summed_gradients,
)
from keras_fastnet._keras.scopes import refuse_lone_update
from keras_fastnet._keras.wrapping import wrap


# Keras gives every replica's loss the weight 1/N, however few examples it has. Here
# losses are means over the replica's own examples, as on one device, and the gradients
# are weighed. Outside of any replica they are means over the whole batch.
@wrap(
    keras_loss,
    "scale_loss_for_distribution",
    stock=(
        "Every replica's loss has the weight 1/N, however few examples the replica has."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
@wrap(
    keras_loss,
    "unscale_loss_for_distribution",
    stock="Undoes `scale_loss_for_distribution`, in logs.",
    until="Keras weighs each replica's loss by its examples.",
)
def _as_on_one_device(original, value):
    plain = keras_step() is not None or in_scope_only() is not None
    return value if plain else original(value)


_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@wrap(
    keras_loss,
    "reduce_values",
    stock=(
        "Sums, scalars and weighted means are those of a replica, and are added up "
        "as if they were means over equal shares."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
def _reduce_exactly(original, values, sample_weight=None, reduction="mean"):
    step = keras_step()
    if step is None or reduction not in (*_MEANS, "sum"):
        return original(values, sample_weight, reduction)
    if values.shape.rank == 0 and reduction in _MEANS:
        return of_scalar(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return mean_over_weights(tf.reduce_sum(values), tf.reduce_sum(sample_weight))
    reduced_values = original(values, sample_weight, reduction)
    return of_sum(reduced_values) if reduction == "sum" else reduced_values


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
        "Losses given to `add_loss` with a value for each example count once for "
        "each replica."
    ),
    until="Keras weighs each replica's loss by its examples.",
)
def _add_exactly(original, model, loss):
    total = original(model, loss)
    return total if keras_step() is None else of_added(loss, total)


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
    with summed_gradients(grads) as sums:
        compiled(lambda: original(optimizer, sums, trainable_variables))()


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


@wrap(
    tf_optimizer.TFOptimizer,
    "_all_reduce_sum_gradients",
    stock="Gradients are summed over the replicas, also where they are sums already.",
    until="`apply` can be told that gradients are sums.",
)
def _reduce_once(original, optimizer, grads_and_vars):
    if holds_sums():
        return list(grads_and_vars)
    return original(optimizer, grads_and_vars)


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


# What a stateful recurrent layer remembers is of a whole batch; a replica keeps and
# changes the rows of its share, in its own copy.
@wrap(
    rnn.RNN,
    "call",
    stock=(
        "The state of a stateful recurrent layer has a row for each example of the "
        "global batch; a replica has its share only."
    ),
    until="Keras divides such states among the replicas.",
)
def _remember_own_rows(original, layer, sequences, initial_state=None, **kwargs):
    strategy = in_replica()
    remembers = layer.stateful and layer.states is not None
    batch = tree.flatten(layer.states)[0].shape[0] if remembers else None
    if (
        strategy is None
        or keras_step() is None
        or batch is None
        or sequences.shape[0] == batch
    ):
        return original(layer, sequences, initial_state, **kwargs)
    start, stop = strategy.fit_support.own_rows(batch)
    states = layer.states
    # Past Keras, which tracks what is set; before 3.11 it does not compare sizes.
    changed = {
        "states": tree.map_structure(lambda v: _Rows(v, start, stop), states),
        "_expected_batch_size": stop - start,
    }
    vars(layer).update(changed)
    try:
        return original(layer, sequences, initial_state, **kwargs)
    finally:
        vars(layer).update(states=states, _expected_batch_size=batch)


class _Rows:
    """Some rows of a variable, as Keras reads and assigns its variables.

    Args:
        variable: Keras's.
        start: The first row.
        stop: The one after the last.
    """

    def __init__(self, variable, start, stop):
        self._variable = variable
        self._rows = slice(start, stop)

    def __tf_tensor__(self, dtype=None, name=None):
        return tf.convert_to_tensor(self._variable[self._rows], dtype, name=name)

    def assign(self, value):
        """Sets the rows.

        Args:
            value: Their values.
        """
        before, after = slice(self._rows.start), slice(self._rows.stop, None)
        value = tf.cast(value, self._variable.dtype)
        self._variable.assign(
            tf.concat([self._variable[before], value, self._variable[after]], 0)
        )
