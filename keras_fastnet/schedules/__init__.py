"""Learning-rate schedules for large batches."""

from keras_fastnet.schedules.warmup_polynomial import (
    gradual_warmup,
    polynomial_decay,
    warmup_polynomial,
)
from keras_fastnet.schedules.warmup_polynomial_decay import WarmupPolynomialDecay

__all__ = [
    "WarmupPolynomialDecay",
    "gradual_warmup",
    "polynomial_decay",
    "warmup_polynomial",
]
