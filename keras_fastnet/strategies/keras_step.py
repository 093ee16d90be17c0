"""Keras's train and test steps, as a strategy sees them."""

import contextlib
from collections.abc import Callable, Iterator
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
        sums = sum_over_replicas(changes + results)
    for variable, value, change in zip(state, state_before, sums, strict=False):
        variable.assign(value + change)
    if not exact:
        return outputs, False
    totals = list(zip(metrics, sums[len(changes) :], strict=True))
    return models.metrics_result(model, totals), True


def sum_over_replicas(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums tensors over the replicas, outside of what is differentiated.

    Args:
        values: This replica's.
    """
    # Of the class: a step's context has its own, below.
    return tf.distribute.ReplicaContext.all_reduce(
        tf.distribute.get_replica_context(), tf.distribute.ReduceOp.SUM, values
    )


@contextlib.contextmanager
def differentiable_sums(weight: ReplicaStep) -> Iterator[None]:
    """Makes gradients of collectives in a forward pass those of the mean.

    `BatchNormalization(synchronized=True)` has such collectives. The gradient of a sum
    over replicas is the sum of the replicas' gradients, each of which has to count by
    its replica's share. The result is divided by the replica's own share, as its
    gradients will be multiplied by that before they are summed.

    Args:
        weight: The replica's weight in a mean over all examples.
    """
    context = tf.distribute.get_replica_context()

    def backward(scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @tf.custom_gradient
        def same(value: Any) -> Any:
            return tf.identity(value), scale

        def scaled(value: Any) -> Any:
            sparse = isinstance(value, tf.IndexedSlices)
            return value if sparse or not value.dtype.is_floating else same(value)

        return lambda values: tf.nest.map_structure(
            lambda value: scaled(
                value
                if isinstance(value, tf.IndexedSlices)
                else tf.convert_to_tensor(value)
            ),
            values,
        )

    enter, leave = backward(weight.unweigh), backward(weight.weigh)

    def all_reduce(reduce_op: Any, value: Any, options: Any = None) -> Any:
        if str(getattr(reduce_op, "name", reduce_op)).upper() == "MEAN":
            value = tf.nest.map_structure(weight.weigh, value)
        plain = tf.distribute.ReplicaContext.all_reduce
        total = plain(context, tf.distribute.ReduceOp.SUM, enter(value), options)
        return leave(total)

    def all_gather(value: Any, axis: Any, options: Any = None) -> Any:
        plain = tf.distribute.ReplicaContext.all_gather
        return leave(plain(context, enter(value), axis, options))

    context.all_reduce, context.all_gather = all_reduce, all_gather
    try:
        yield
    finally:
        del context.all_reduce, context.all_gather


def _value(variable: Any) -> tf.Tensor:
    """Returns a copy of what this replica has in a variable."""
    return tf.identity(values.tensorflow_variable(variable))


def _has_own_logs(model: keras.Model, outputs: Any) -> bool:
    """Whether what a step returned are the metrics' results."""
    return isinstance(outputs, dict) and all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("train_step", "test_step", "compute_metrics", "get_metrics_result")
    )
