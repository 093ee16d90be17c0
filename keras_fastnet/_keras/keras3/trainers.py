"""Keras 3's trainer of the TensorFlow backend, which Keras 3.16 renames."""

from typing import Any

from keras.src.backend.tensorflow import trainer as tf_trainer

_module: Any = tf_trainer

TensorFlowTrainer: Any = getattr(_module, "TensorFlowTrainer", None) or _module.Trainer
"""The trainer that a `keras.Model` inherits."""
