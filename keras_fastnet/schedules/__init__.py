"""Learning-rate schedules for large-batch training."""

import importlib

from keras_fastnet.schedules.decays import Constant, Cosine, Polynomial, Steps
from keras_fastnet.schedules.plot import plot
from keras_fastnet.schedules.scaling import (
    ScaledRate,
    linear_scaling,
    square_root_scaling,
)

_DEPRECATED = {
    "WarmupPolynomialDecay",
    "gradual_warmup",
    "polynomial_decay",
    "warmup_polynomial",
}

__all__ = [
    "Constant",
    "Cosine",
    "Polynomial",
    "ScaledRate",
    "Steps",
    "linear_scaling",
    "plot",
    "square_root_scaling",
]


def __getattr__(name: str) -> object:
    if name in _DEPRECATED:
        # Imports TensorFlow, which decays do without.
        home = "keras_fastnet.optimizers.warmup_polynomial_decay"
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
