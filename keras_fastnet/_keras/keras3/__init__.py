"""Keras 3's trainer of the TensorFlow backend, which Keras 3.16 renames."""

from typing import Any

from keras.src.backend.tensorflow import trainer as tf_trainer

_names = vars(tf_trainer)
TensorFlowTrainer: Any = _names.get("TensorFlowTrainer") or _names["Trainer"]
"""The trainer that a `keras.Model` inherits."""
