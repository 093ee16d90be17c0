"""Reads and sets the learning rate, and corrects momentum for its changes."""

from typing import Any

import tensorflow as tf

from keras_fastnet._keras.adapters import optimizers, values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.optimizers.lars import LARS


class MomentumCorrection:
    """Rescales momentum buffers that contain the learning rate.

    With the rate inside the buffer, past gradients keep the rate of their time:

        v = m v + rate g;  w = w - v

    Multiplying the buffer by the new rate over the old one whenever the rate changes
    gives the updates of an optimizer with the rate outside, for which Goyal et al. 2017
    (arXiv 1706.02677, section 3.1, remark 3) wrote their schedules:

        u = m u + g;  w = w - rate u

    A rate of 0 leaves nothing to rescale: earlier gradients are forgotten.

    Args:
        optimizer: A `keras.optimizers.SGD` or `LARS`, or an optimizer that wraps one.

    Raises:
        ValueError: If it is another optimizer.
    """

    def __init__(self, optimizer: Any):
        optimizer = optimizers.with_inner(optimizer)[-1]
        if not isinstance(optimizer, LARS | keras.optimizers.SGD):
            raise ValueError(
                "`momentum_correction` requires SGD or LARS, whose momentum buffers "
                f"contain the learning rate. Received: {type(optimizer).__name__}. "
                "Leave it out: Adam and its relatives keep the rate outside."
            )
        self._optimizer = optimizer
        self._scale = tf.function(self._scale_buffers)

    def __call__(self, factor: float) -> None:
        """Multiplies the momentum buffers, if the optimizer is built.

        Args:
            factor: The new rate over the old one.
        """
        if optimizers.is_built(self._optimizer) and self._optimizer.momentum:
            self._scale(tf.constant(factor, tf.float32))

    def _scale_buffers(self, factor: tf.Tensor) -> None:
        for buffer in self._optimizer.momentums:
            variable = values.tensorflow_variable(buffer)
            variable.assign(variable * tf.cast(factor, variable.dtype))


def learning_rate_of(optimizer: Any) -> float:
    """Returns the current learning rate.

    Args:
        optimizer: A Keras optimizer.
    """
    # Nested wrappers of tensorflow-addons do not have the attribute.
    innermost = optimizers.with_inner(optimizer)[-1]
    return float(values.to_numpy(innermost.learning_rate))


def set_learning_rate(
    optimizer: Any, rate: float, correction: MomentumCorrection | None = None
) -> None:
    """Sets the learning rate.

    Args:
        optimizer: A Keras optimizer without a schedule.
        rate: The new rate.
        correction: Rescales the momentum. Defaults to `None`: momentum is unchanged.
    """
    innermost = optimizers.with_inner(optimizer)[-1]
    if correction is None:
        # Without reading the rate, which would wait for the previous step.
        innermost.learning_rate = rate
        return
    before = learning_rate_of(optimizer)
    innermost.learning_rate = rate
    # Read back in the precision of the variable, so that the factors multiply up to the
    # ratio of the stored rates.
    after = learning_rate_of(optimizer)
    if before not in (0.0, after):
        correction(after / before)
