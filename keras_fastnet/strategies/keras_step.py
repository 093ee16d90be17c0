"""Keras's train, test and predict steps, as a strategy sees them."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def model_of(step: Callable[..., Any]) -> keras.Model | None:
    """Returns the model whose step a function is, or `None`.

    Args:
        step: What was given to `Strategy.run`: a bound `train_step` or `test_step`,
            or the local function in which Keras wraps `predict_step`.
    """
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    step = getattr(step, "python_function", step)
    owner = getattr(step, "__self__", None)
    if isinstance(owner, keras.Model):
        return owner
    if getattr(step, "__module__", "") != "keras.src.backend.tensorflow.trainer":
        return None
    for cell in getattr(step, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.Model):
            return cell.cell_contents
    return None


def refuse_what_cannot_be_right(model: keras.Model, replicas: int) -> None:
    """Raises for settings that several replicas cannot honour.

    Args:
        model: A compiled model.
        replicas: Number of replicas in sync.

    Raises:
        ValueError: The rule, what was received and what to do.
    """
    if replicas > 1 and model.jit_compile:
        raise ValueError(
            "XLA cannot compile a step that communicates with other replicas. "
            f"Received: `jit_compile={model.jit_compile}` with {replicas} replicas. "
            'Use `jit_compile="auto"` (the default) or `False` in `compile`.'
        )


def exact_logs(model: keras.Model, outputs: Any) -> dict[str, Any] | None:
    """Returns the metrics over all replicas' examples, equal on every replica.

    Keras averages the replicas' own results, which is not the result over all
    examples where a metric is no mean (AUC) or shares are unequal. Called in the
    replica context at the end of a step. All sums travel in one all-reduce.

    Args:
        model: The model whose `train_step` or `test_step` ran.
        outputs: What the step returned.

    Returns:
        The logs by name; `None` where the step or a metric does things its own way.
    """
    variables = [v for metric in model.metrics for v in metric.variables]
    keras_own = all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("train_step", "test_step", "compute_metrics", "get_metrics_result")
    )
    if (
        not keras_own
        or not isinstance(outputs, dict)
        or any(v.aggregation != "sum" for v in variables)
    ):
        return None
    context = tf.distribute.get_replica_context()
    sums = context.all_reduce(
        tf.distribute.ReduceOp.SUM, [tf.identity(v.value) for v in variables]
    )
    with keras.StatelessScope(state_mapping=list(zip(variables, sums, strict=True))):
        return model.get_metrics_result()
