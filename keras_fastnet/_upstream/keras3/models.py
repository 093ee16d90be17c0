"""What Keras does not tell of its models."""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import trainer as tf_trainer

from keras_fastnet._upstream.hooked import HookedOptimizer
from keras_fastnet._upstream.hooking import unwrapped
from keras_fastnet._upstream.training_state import metric_variables, named


def layer_state(model: keras.Model) -> list[keras.Variable]:
    """Returns what layers keep for themselves, such as moving statistics.

    Not the weights of frozen layers, which Keras also calls non-trainable; nor
    counters and random states, which are integers; nor what a stateful recurrent
    layer remembers of each example.

    Args:
        model: A built model.

    Returns:
        Variables that a step may set to another value on every replica.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if not isinstance(layer, keras.layers.RNN)
        for variable in layer._non_trainable_variables
        if variable.aggregation == "none"
        and keras.backend.is_float_dtype(variable.dtype)
    ]


def is_summed(variable: keras.Variable) -> bool:
    """Whether the replicas' values of a metric's variable make one by a sum.

    Args:
        variable: Of a metric.
    """
    return variable.aggregation == "sum"


def metrics_result(
    model: keras.Model, totals: list[tuple[keras.Variable, Any]]
) -> dict[str, Any]:
    """Returns what a model's metrics say of other values of their variables.

    Args:
        model: A compiled model.
        totals: Each variable of its metrics, and the value.
    """
    with keras.StatelessScope(state_mapping=totals):
        return model.get_metrics_result()


def model_of(step: Callable[..., Any]) -> keras.Model | None:
    """Returns the model whose step a function is, or `None`.

    Args:
        step: What was given to `Strategy.run`: a bound `train_step` or `test_step`,
            or the local function in which Keras wraps `predict_step`.
    """
    step = unwrapped(step)
    owner = getattr(step, "__self__", None)
    if isinstance(owner, keras.Model):
        return owner
    if getattr(step, "__module__", "") != tf_trainer.__name__:
        return None
    for cell in getattr(step, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.Model):
            return cell.cell_contents
    return None


def build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's variables; on one device Keras leaves it to the first step.

    Args:
        model: A compiled and built model.
    """
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def build_state(model: keras.Model, elements: Any) -> None:
    """Makes all variables that training changes; all but the optimizer's are there.

    Args:
        model: A compiled and built model.
        elements: The `EpochData` of its training.
    """
    build_optimizer(model)


def begin_fit_at(model: keras.Model, epoch: int | None) -> None:
    """Sets the epoch that `fit` begins with; for a callback's `on_train_begin`.

    Args:
        model: The model.
        epoch: The epoch; `None` for what `fit` was told.
    """
    model._initial_epoch = epoch


def whole_state(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all that training changes, by a name that a restart gives again.

    Args:
        model: A model whose optimizer is built.

    Returns:
        Weights, states of layers, metrics and random streams, and the optimizer's
        variables. Values of metrics have to be read by all workers.
    """
    groups = {
        "metrics": metric_variables(model),
        "model": model.variables,
        "optimizer": model.optimizer.variables,
    }
    generator = global_state.get_global_attribute("global_seed_generator")
    if generator is not None:
        groups["random"] = [generator.state]
    return named(groups)


def retrace(model: keras.Model) -> None:
    """Has the train function traced anew, for an optimizer that has changed.

    Args:
        model: A compiled model, such as a callback's in `on_train_begin`.
    """
    model.make_train_function(force=True)
    if isinstance(model.optimizer, HookedOptimizer):
        model.optimizer.retrace()
