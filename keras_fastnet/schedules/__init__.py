"""Learning-rate schedules for large-batch training."""

from keras_fastnet.schedules.decays import Constant, Cosine, Polynomial, Steps
from keras_fastnet.schedules.scaling import (
    ScaledRate,
    linear_scaling,
    square_root_scaling,
)

__all__ = [
    "Constant",
    "Cosine",
    "Polynomial",
    "ScaledRate",
    "Steps",
    "linear_scaling",
    "square_root_scaling",
]
