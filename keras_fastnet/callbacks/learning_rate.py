"""The learning rate, as callbacks read and set it."""

from typing import Any

from keras_fastnet._keras.chosen import optimizers, values
from keras_fastnet.optimizers.momentum_correction import MomentumCorrection


def learning_rate_of(optimizer: Any) -> float:
    """Returns the present learning rate.

    Args:
        optimizer: A Keras optimizer.
    """
    # Addons that wrap addons do not find it.
    innermost = optimizers.with_inner(optimizer)[-1]
    return float(values.to_numpy(innermost.learning_rate))


def set_learning_rate(
    optimizer: Any, rate: float, correction: MomentumCorrection | None = None
) -> None:
    """Sets the learning rate.

    Args:
        optimizer: A Keras optimizer without a schedule of its own.
        rate: The new rate.
        correction: What has the momentum follow. Defaults to `None`: nothing does.
    """
    innermost = optimizers.with_inner(optimizer)[-1]
    if correction is None:
        # Without reading it, which would wait for the step before.
        innermost.learning_rate = rate
        return
    before = learning_rate_of(optimizer)
    innermost.learning_rate = rate
    # As it is stored: rates of 64 bits would add up to other products.
    after = learning_rate_of(optimizer)
    if before not in (0.0, after):
        correction(after / before)
