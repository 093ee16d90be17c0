"""Adapter for Keras 2 variables, which are TensorFlow's."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras


def tensorflow_variable(variable: Any) -> Any:
    """Returns the variable itself."""
    return variable


def as_tensor(value: Any) -> Any:
    """Returns the value of a variable or an array; anything else unchanged."""
    holds = isinstance(value, tf.Variable | np.ndarray | np.generic)
    return tf.convert_to_tensor(value) if holds else value


def new_variable(initial_value: Any, name: str) -> Any:
    """Returns a variable that is not trained."""
    return tf.Variable(initial_value, trainable=False, name=name)


def to_numpy(value: Any) -> np.ndarray:
    """Returns a copy of the value of a variable or a tensor."""
    return tf.convert_to_tensor(value).numpy()


def path(variable: Any) -> str:
    """Returns the name of a variable, which begins with its layer's."""
    # `:0` is the number of an operation's output.
    return variable.name.removesuffix(":0")


def compute_dtype() -> str:
    """Returns the dtype that layers compute in, by the global policy."""
    return keras.mixed_precision.global_policy().compute_dtype
