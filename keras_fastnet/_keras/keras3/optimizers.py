"""Adapter for Keras 3 optimizers."""

from contextlib import AbstractContextManager
from typing import Any

import keras

Optimizer = keras.optimizers.Optimizer
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
OPTIMIZERS = (keras.optimizers.Optimizer,)
"""What may be an inner optimizer."""
LOSS_SCALE_OPTIMIZERS = (keras.optimizers.LossScaleOptimizer,)
"""Those that scale the loss."""


def apply_update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Has an optimizer make its update.

    Args:
        optimizer: The optimizer.
        gradients: Sums over the replicas.
        variables: Their variables.
    """
    optimizer.apply(gradients, variables)


def is_built(optimizer: Any) -> bool:
    """Whether an optimizer has its variables."""
    return optimizer.built


def keep_variables(optimizer: Any, variables: list[Any]) -> None:
    """Has an optimizer know the variables that it is built for.

    The `LossScaleOptimizer` of older Keras does not note them.
    """
    keras.optimizers.Optimizer.build(optimizer, variables)


def building_scope(name: str) -> AbstractContextManager:
    """Returns what variables are made in that an update needs."""
    return keras.name_scope(name)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer."""
    return optimizer.variables


def schedule_of(optimizer: Any) -> str | None:
    """Returns the name of what an optimizer's learning rate follows.

    Returns:
        `None` where the rate is a number that may be set.
    """
    rate = optimizer._learning_rate
    if isinstance(rate, keras.Variable):
        return None
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return type(rate).__name__ if is_schedule else "a function"


def innermost(optimizer: Any) -> list[Any]:
    """Returns the optimizers that change variables.

    Args:
        optimizer: A model's, which may be `None`.

    Returns:
        Several within a `MultiOptimizer`; none where a step of the user's own has
        others.
    """
    if optimizer is None or not optimizer.built:
        return []
    innermost = with_inner(optimizer)[-1]
    return list(getattr(innermost, "optimizers", [innermost]))


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those within, from the outside."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, *with_inner(inner)]
