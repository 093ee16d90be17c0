"""Keras 3's trainer classes, which Keras 3.16 renames."""

from typing import Any

from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers import trainer as base_trainer

_trainers: Any = tf_trainer
_bases: Any = base_trainer
_is_renamed = hasattr(_bases, "BaseTrainer")

TensorFlowTrainer: Any
"""The trainer that a `keras.Model` inherits."""
TensorFlowTrainer = _trainers.Trainer if _is_renamed else _trainers.TensorFlowTrainer
BaseTrainer: Any
"""What the trainers of all backends inherit."""
BaseTrainer = _bases.BaseTrainer if _is_renamed else _bases.Trainer
