"""A learning-rate schedule with warm-up and polynomial decay, for Keras optimizers."""

from numbers import Integral
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.arguments import checked_number
from keras_fastnet.schedules.warmup_polynomial import gradual_warmup, polynomial_decay


@keras.saving.register_keras_serializable(package="keras_fastnet")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Warms up linearly to a peak, then decays polynomially.

    `decay_steps` counts the steps after the warm-up, as in
    `keras.optimizers.schedules.CosineDecay`: the training has `warmup_steps +
    decay_steps` steps, after which the rate stays at the end rate.

    ```python
    if step < warmup_steps:
        rate = warmup_start + (peak - warmup_start) * step / warmup_steps
    else:
        left = 1 - min((step - warmup_steps) / decay_steps, 1)
        rate = end + (peak - end) * left ** power
    ```

    A step is a call of the optimizer. With `gradient_accumulation_steps=k`, Keras makes
    one update of k calls and counts the calls, so pass k times as many steps. (With
    `LargeBatchOptimizer`, a step is an update.)

    Args:
        peak_learning_rate: The rate at the end of the warm-up.
        decay_steps: Steps from the peak to the end rate, without the warm-up.
        warmup_steps: Steps of the warm-up, at least 1.
        warmup_start: The rate at step 0, below the peak. Defaults to `0.0`
            (MLPerf's reference), so that the first step moves nothing; Goyal et
            al. start from the rate of one worker.
        end_learning_rate: The rate at the end and after it, not above the peak.
            Defaults to `1e-4` (MLPerf's ResNet-50).
        power: The exponent of the decay, above 0. Defaults to `2.0` (You et al.).
        name: A name for the schedule. Defaults to `"WarmupPolynomialDecay"`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the warm-up does not increase the rate, the decay increases it,
            or a number of steps is not positive.

    Example:

    Ninety epochs of 40 steps, 14 of them warm-up:

    >>> schedule = WarmupPolynomialDecay(
    ...     32.0, decay_steps=76 * 40, warmup_steps=14 * 40, end_learning_rate=0.0
    ... )
    >>> [float(schedule(epoch * 40)) for epoch in (0, 7, 14, 52, 90, 100)]
    [0.0, 16.0, 32.0, 8.0, 0.0, 0.0]

    References:
        - [You et al., 2017](https://arxiv.org/abs/1708.03888)
        - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), section 2.2
    """

    def __init__(
        self,
        peak_learning_rate: float,
        decay_steps: int,
        warmup_steps: int,
        warmup_start: float = 0.0,
        end_learning_rate: float = 1e-4,
        power: float = 2.0,
        name: str = "WarmupPolynomialDecay",
    ):
        super().__init__()
        self.peak_learning_rate = checked_number(
            "peak_learning_rate", peak_learning_rate, above=0.0
        )
        self.decay_steps = _steps("decay_steps", decay_steps)
        self.warmup_steps = _steps("warmup_steps", warmup_steps)
        self.warmup_start = checked_number("warmup_start", warmup_start, at_least=0.0)
        self.end_learning_rate = checked_number(
            "end_learning_rate", end_learning_rate, at_least=0.0
        )
        self.power = checked_number("power", power, above=0.0)
        self.name = name
        if not self.warmup_start < self.peak_learning_rate:
            raise ValueError(
                "`warmup_start` must be below `peak_learning_rate`. "
                f"Received: warmup_start={warmup_start}, "
                f"peak_learning_rate={peak_learning_rate}. "
                "Lower `warmup_start`, or use "
                "`keras.optimizers.schedules.PolynomialDecay` for no warm-up."
            )
        if self.end_learning_rate > self.peak_learning_rate:
            raise ValueError(
                "`end_learning_rate` must not be above `peak_learning_rate`. "
                f"Received: end_learning_rate={end_learning_rate}, "
                f"peak_learning_rate={peak_learning_rate}. "
                "Lower `end_learning_rate`."
            )

    def __call__(self, step: Any) -> Any:
        """Returns the rate at `step`, as a tensor.

        Args:
            step: Number of steps done, a number or a scalar tensor.
        """
        step = tf.cast(step, keras.backend.floatx())
        warm = tf.clip_by_value(step / self.warmup_steps, 0.0, 1.0)
        done = tf.clip_by_value((step - self.warmup_steps) / self.decay_steps, 0.0, 1.0)
        return tf.where(
            step < self.warmup_steps,
            gradual_warmup(warm, start=self.warmup_start, peak=self.peak_learning_rate),
            polynomial_decay(
                done,
                peak=self.peak_learning_rate,
                end=self.end_learning_rate,
                power=self.power,
            ),
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for `from_config`."""
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "decay_steps": self.decay_steps,
            "warmup_steps": self.warmup_steps,
            "warmup_start": self.warmup_start,
            "end_learning_rate": self.end_learning_rate,
            "power": self.power,
            "name": self.name,
        }


def _steps(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"`{argument}` must be an int. Received: {argument}={value!r}. "
            "Round epochs times steps per epoch to an int."
        )
    if value < 1:
        raise ValueError(
            f"`{argument}` must be at least 1. Received: {argument}={value}. "
            "Use `keras.optimizers.schedules.PolynomialDecay` for no warm-up."
        )
    return int(value)
