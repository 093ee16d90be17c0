"""Adapter for Keras 3 variables."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def tensorflow_variable(variable: Any) -> Any:
    """Returns TensorFlow's variable within a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def as_tensor(value: Any) -> Any:
    """Returns the value of a variable or an array; anything else unchanged."""
    holds = isinstance(value, keras.Variable | tf.Variable | np.ndarray | np.generic)
    return keras.ops.convert_to_tensor(value) if holds else value


def new_variable(initial_value: Any, name: str) -> Any:
    """Returns a variable that is not trained."""
    return keras.Variable(initial_value, trainable=False, name=name)


def to_numpy(value: Any) -> np.ndarray:
    """Returns a copy of the value of a variable or a tensor."""
    # Keras's `convert_to_numpy` copies a variable more than once.
    return np.array(tf.convert_to_tensor(value))


def path(variable: Any) -> str:
    """Returns the path of a variable in its model.

    Args:
        variable: A Keras variable, or one of TensorFlow's, which have a name only.
    """
    return getattr(variable, "path", variable.name)


def compute_dtype() -> str:
    """Returns the dtype that layers compute in, by the global policy."""
    return keras.config.dtype_policy().compute_dtype
