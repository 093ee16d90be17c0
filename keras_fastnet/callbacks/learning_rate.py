"""The learning rate of an optimizer, and momentum that follows its changes."""

from typing import Any

import tensorflow as tf

from keras_fastnet._keras.adapters import optimizers, values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.optimizers.lars import LARS


class MomentumCorrection:
    """Scales momentum buffers that have the learning rate inside of them.

    With the rate inside, gradients seen before a change go on with their old rate:

        v = m v + rate g;  w = w - v

    Multiplied by the new rate over the old one whenever the rate changes, the buffer is
    that of an optimizer with the rate outside, for which Goyal et al. 2017 (arXiv
    1706.02677, section 3.1, remark 3) wrote their schedules:

        u = m u + g;  w = w - rate u

    A rate of 0 leaves nothing to be multiplied: what was seen before it is forgotten.

    Args:
        optimizer: A `keras.optimizers.SGD` or `LARS`, or an optimizer that has one
            inside.

    Raises:
        ValueError: It is another optimizer.
    """

    def __init__(self, optimizer: Any):
        optimizer = optimizers.with_inner(optimizer)[-1]
        if not isinstance(optimizer, LARS | keras.optimizers.SGD):
            raise ValueError(
                "`momentum_correction` is for SGD and LARS, which keep the learning "
                f"rate inside the momentum buffer. Received: {type(optimizer).__name__}"
                ". Leave it out: Adam and its relatives keep the rate outside."
            )
        self._optimizer = optimizer
        self._scale = tf.function(self._scale_buffers)

    def __call__(self, factor: float) -> None:
        """Multiplies the buffers, if there are any yet.

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
