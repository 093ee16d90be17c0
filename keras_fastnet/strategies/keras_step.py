"""Keras's train and test steps, as a strategy sees them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_fastnet._upstream.chosen import models, values
from keras_fastnet._upstream.keras_api import keras
from keras_fastnet._upstream.training_state import metric_variables
from keras_fastnet.strategies.global_batch import GlobalBatch
from keras_fastnet.strategies.replica_step import ReplicaStep


def run_step(
    model: keras.Model,
    step: Callable[..., Any],
    batch: GlobalBatch,
    weight: ReplicaStep,
) -> tuple[Any, bool]:
    """Runs a train or test step so that it leaves all replicas equal.

    Keras lets every replica keep moving statistics of its own, and averages the
    replicas' metric results, which is not the result over all examples where a
    metric is no mean (AUC) or shares are unequal. Here the changes of the layers'
    state are averaged and the metrics' states summed, in one all-reduce.

    Args:
        model: The model.
        step: Its `train_step` or `test_step`.
        batch: The replica's share.
        weight: The replica's weight in a mean over all examples.

    Returns:
        What the step returned, with the logs over all examples where the model's
        steps and metrics are Keras's own; and whether the logs are those.
    """
    context = tf.distribute.get_replica_context()
    state = models.layer_state(model) if step.__name__ == "train_step" else []
    metrics = metric_variables(model)
    state_before = [_value(v) for v in state]
    metrics_before = [_value(v) for v in metrics]

    outputs = step(batch.data)

    for variable, value in zip(metrics, metrics_before, strict=True):
        # What was only a filler counts for nothing.
        variable.assign(tf.where(batch.own > 0, _value(variable), value))
    exact = _has_own_logs(model, outputs) and all(
        models.is_summed(variable) for variable in metrics
    )
    changes = [
        weight.weigh(_value(variable) - value)
        for variable, value in zip(state, state_before, strict=True)
    ]
    results = [_value(v) for v in metrics] if exact else []
    sums = []
    if changes or results:
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, changes + results)
    for variable, value, change in zip(state, state_before, sums, strict=False):
        variable.assign(value + change)
    if not exact:
        return outputs, False
    totals = list(zip(metrics, sums[len(changes) :], strict=True))
    return models.metrics_result(model, totals), True


def _value(variable: Any) -> tf.Tensor:
    """Returns a copy of what this replica has in a variable."""
    return tf.identity(values.tensorflow_variable(variable))


def _has_own_logs(model: keras.Model, outputs: Any) -> bool:
    """Whether what a step returned are the metrics' results."""
    return isinstance(outputs, dict) and all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("train_step", "test_step", "compute_metrics", "get_metrics_result")
    )
