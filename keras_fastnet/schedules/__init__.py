"""Learning-rate schedules for large-batch training."""

from keras_fastnet.schedules.decays import Constant, Cosine, Polynomial, Steps
from keras_fastnet.schedules.plot import plot
from keras_fastnet.schedules.scaling import (
    ScaledRate,
    linear_scaling,
    square_root_scaling,
)
from keras_fastnet.schedules.warmup_polynomial import (
    gradual_warmup,
    polynomial_decay,
    warmup_polynomial,
)
from keras_fastnet.schedules.warmup_polynomial_decay import WarmupPolynomialDecay

__all__ = [
    "Constant",
    "Cosine",
    "Polynomial",
    "ScaledRate",
    "Steps",
    "WarmupPolynomialDecay",
    "gradual_warmup",
    "linear_scaling",
    "plot",
    "polynomial_decay",
    "square_root_scaling",
    "warmup_polynomial",
]
