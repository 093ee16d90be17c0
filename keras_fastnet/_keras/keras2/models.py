"""Models of Keras 2: their state, steps and variables."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.active_strategy import MicroBatchOptimizer, strategy_of
from keras_fastnet._keras.keras2 import optimizers
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.replica_step import ModelStep
from keras_fastnet._keras.training import metric_variables, named
from keras_fastnet._keras.wrapping import unwrapped


def layer_state(model: Any) -> list[tf.Variable]:
    """Returns the state that layers keep, such as moving statistics.

    Not the weights of frozen layers, which Keras also calls non-trainable; nor
    counters, which are integers; nor what a stateful recurrent layer remembers of
    each example.

    Args:
        model: A built model.

    Returns:
        Variables that a step may set to another value on every replica.
    """
    of_metrics = {id(v) for v in metric_variables(model)}
    return [
        variable
        for layer in model._flatten_layers()
        if not isinstance(layer, keras.layers.RNN | keras.metrics.Metric)
        for variable in layer._non_trainable_weights
        if variable.dtype.is_floating and id(variable) not in of_metrics
    ]


def is_summed(variable: tf.Variable) -> bool:
    """Whether the replicas' values of a metric's variable make one by a sum.

    Args:
        variable: Of a metric.
    """
    return variable.aggregation == tf.VariableAggregation.SUM


def all_metric_variables(model: Any) -> list[tf.Variable]:
    """Returns the variables of all metrics of a model.

    Args:
        model: A compiled model.
    """
    return metric_variables(model)


def results_over_replicas(model: Any) -> AbstractContextManager[None]:
    """Leaves a model's metrics as they are: each replica has its own results.

    Args:
        model: A compiled model.
    """
    return contextlib.nullcontext()


def is_overridden(model: Any, name: str) -> bool:
    """Whether a model has another method than Keras's.

    Args:
        model: The model.
        name: Of the method.
    """
    return getattr(type(model), name) is not getattr(keras.Model, name)


def metrics_result(
    model: Any, totals: list[tuple[tf.Variable, tf.Tensor]]
) -> dict[str, tf.Tensor]:
    """Returns what a model's metrics say of other values of their variables.

    Args:
        model: A compiled model.
        totals: Each variable of its metrics, and the value.
    """
    own = [tf.identity(variable) for variable, _ in totals]
    for variable, total in totals:
        variable.assign(total)
    result = tf.nest.map_structure(tf.identity, model.get_metrics_result())
    for (variable, _), value in zip(totals, own, strict=True):
        variable.assign(value)
    return result


def step_of(function: Callable[..., Any]) -> ModelStep | None:
    """Returns the step of a model that a function is, or `None`.

    Args:
        function: What was given to `Strategy.run`: one of `train_step`, `test_step`
            and `predict_step`, or a function with the attribute `fastnet_model`.
    """
    plain = unwrapped(function)
    owner = getattr(plain, "__self__", None)
    if isinstance(owner, keras.Model):
        trains = plain.__name__ == "train_step"
        return ModelStep(owner, function, "train" if trains else "test")
    model = getattr(plain, "fastnet_model", None)
    return None if model is None else ModelStep(model, function, "predict")


def build_optimizer(model: Any) -> None:
    """Makes the optimizer's variables, which Keras leaves to the first step.

    Args:
        model: A compiled and built model.
    """
    with model.distribute_strategy.scope():
        optimizers.build(model.optimizer, model.trainable_variables)


def build_state(model: Any, elements: Any) -> None:
    """Makes all variables that training changes, also those of metrics.

    Args:
        model: A compiled and built model.
        elements: The `EpochData` of its training.
    """
    strategy = strategy_of(model)
    build_for(
        model,
        elements.peek
        if strategy is None
        else lambda: strategy.fit_support.data.peek(elements),
    )


def build_for(model: Any, examples: Callable[[], Any]) -> None:
    """Makes all variables, which Keras leaves to the first step.

    A step that makes them is traced twice, and does not know which of them it has to
    sum over the replicas.

    Args:
        model: A compiled model.
        examples: Returns some of a batch, as a step takes them. Not asked where all
            variables are there.
    """
    if getattr(model, "_fastnet_built", None) is model.compiled_metrics:
        return
    model._fastnet_built = model.compiled_metrics

    @tf.function
    def trace(data: Any) -> None:
        tf.distribute.Strategy.run(model.distribute_strategy, model.test_step, (data,))

    # Traced, not run.
    trace.get_concrete_function(examples())
    build_optimizer(model)


def begin_fit_at(model: Any, epoch: int | None) -> None:
    """Sets the epoch that `fit` begins with; for a callback's `on_train_begin`.

    Args:
        model: The model.
        epoch: The epoch; `None` for what `fit` was told.
    """
    model._fastnet_initial_epoch = epoch


def whole_state(model: Any) -> dict[str, tf.Variable]:
    """Returns all that training changes, by a name that a restart gives again.

    Args:
        model: A model whose optimizer is built.

    Returns:
        Weights, states of layers, metrics, and the optimizer's variables. Values of
        metrics have to be read by all workers.
    """
    groups = {
        "metrics": metric_variables(model),
        "model": model.variables,
        "optimizer": optimizers.variables_of(model.optimizer),
    }
    innermost = optimizers.with_inner(model.optimizer)[-1]
    if optimizers.schedule_of(innermost) is None:
        # Not among an optimizer's variables, as it is in Keras 3.
        groups["learning rate"] = [innermost.learning_rate]
    return named(groups)


def retrace(model: Any) -> None:
    """Retraces the train function, for an optimizer that has changed.

    Args:
        model: A compiled model, such as a callback's in `on_train_begin`.
    """
    # `fit` holds the function that it has made before.
    model.train_function = model.make_train_function(force=True)
    if isinstance(model.optimizer, MicroBatchOptimizer):
        model.optimizer.retrace()
