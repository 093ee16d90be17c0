"""Variables of the chosen Keras."""

from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import IS_KERAS_2, keras


def new_variable(value: Any, dtype: Any = "float32", name: str | None = None) -> Any:
    """Returns a trainable variable, as layers make them."""
    if IS_KERAS_2:
        return tf.Variable(value, dtype=dtype, name=name)
    return keras.Variable(value, dtype=dtype, name=name)
