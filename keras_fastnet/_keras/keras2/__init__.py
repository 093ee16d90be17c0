"""Keras 2's modules, which have the same places in `tf_keras` and in Keras 2.15."""

import importlib
from typing import Any

from keras_fastnet._keras.keras_api import keras


def internal(name: str) -> Any:
    """Returns a module of the chosen Keras 2, by its place below `src`."""
    return importlib.import_module(f"{keras.__name__}.src.{name}")
