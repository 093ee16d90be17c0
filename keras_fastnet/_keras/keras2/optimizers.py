"""Adapter for Keras 2 optimizers.

Keras 2 has two kinds: those since 2.11, and `keras.optimizers.legacy`, which the
wrappers of tensorflow-addons demand and are.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras2 import internal
from keras_fastnet._keras.keras2.loss_scale_optimizer import LossScaleOptimizer
from keras_fastnet._keras.keras2.optimizer import (
    Optimizer,
    apply_update,
    build,
    variables_of,
    with_inner,
)
from keras_fastnet._keras.keras_api import keras

_loss_scale = internal("mixed_precision.loss_scale_optimizer")
_Legacy = keras.optimizers.legacy.Optimizer
OPTIMIZERS = (keras.optimizers.Optimizer, _Legacy)
"""What may be an inner optimizer."""
LOSS_SCALE_OPTIMIZERS = (
    LossScaleOptimizer,
    _loss_scale.LossScaleOptimizer,
    _loss_scale.LossScaleOptimizerV3,
)
"""Those that scale the loss."""

__all__ = [
    "LOSS_SCALE_OPTIMIZERS",
    "OPTIMIZERS",
    "LossScaleOptimizer",
    "Optimizer",
    "apply_update",
    "build",
    "building_scope",
    "is_built",
    "keep_variables",
    "schedule_of",
    "variables_of",
    "with_inner",
]


def innermost(optimizer: Any) -> list[Any]:
    """Returns the optimizer that changes variables, within those that wrap it.

    Args:
        optimizer: A model's.
    """
    return with_inner(optimizer)[-1:]


def is_built(optimizer: Any) -> bool:
    """Whether an optimizer has its variables.

    Args:
        optimizer: A keras_fastnet optimizer, or an SGD.
    """
    return getattr(optimizer, "_built", False)


def keep_variables(optimizer: Any, variables: list[Any]) -> None:
    """Has an optimizer know the variables that it is built for.

    Args:
        optimizer: A keras_fastnet optimizer.
        variables: What it will update.
    """
    Optimizer.build(optimizer, variables)


@contextlib.contextmanager
def building_scope(name: str) -> Iterator[None]:
    """Returns what variables are made in that an update needs.

    Args:
        name: Of the optimizer.
    """
    with tf.init_scope(), tf.name_scope(name):
        yield


def schedule_of(optimizer: Any) -> str | None:
    """Returns the name of what an optimizer's learning rate follows.

    Args:
        optimizer: The optimizer.

    Returns:
        `None` where the rate is a number that may be set.
    """
    innermost = with_inner(optimizer)[-1]
    if isinstance(innermost, keras.optimizers.Optimizer):
        rate = innermost._learning_rate
    else:
        rate = innermost._hyper["learning_rate"]
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return type(rate).__name__
    return "a function" if callable(rate) and not tf.is_tensor(rate) else None
