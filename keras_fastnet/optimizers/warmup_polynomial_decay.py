"""Deprecated: a schedule, and functions, of a warm-up and a polynomial decay.

`callbacks.LearningRateWarmup` does the same, in epochs or updates, with any decay. The
schedule is registered with the optimizers, so that `.keras` files with it are loaded.
"""

import warnings
from numbers import Integral
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.arguments import checked_number


@keras.saving.register_keras_serializable(package="keras_fastnet")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Deprecated: warms up linearly to a peak, then decays polynomially.

    Instead of `LARS(WarmupPolynomialDecay(32.0, decay_steps=3040, warmup_steps=560,
    end_learning_rate=0.0))`, pass a number to the optimizer and
    `LearningRateWarmup(32.0, warmup_updates=560, then=Polynomial(3040))` to `fit`.

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
        end = self.end_learning_rate / self.peak_learning_rate
        others = {"end": (end, 0.0), "power": (self.power, 2.0)}
        decay = ", ".join(
            [str(self.decay_steps)]
            + [f"{k}={v:.6g}" for k, (v, usual) in others.items() if v != usual]
        )
        start = f", start={self.warmup_start:g}" if self.warmup_start else ""
        _deprecated(
            "WarmupPolynomialDecay",
            "Pass a number to the optimizer, and to `fit` the callback "
            f"`LearningRateWarmup({self.peak_learning_rate:g}, "
            f"warmup_updates={self.warmup_steps}, then=Polynomial({decay}){start})`. "
            "Loops without `fit` set `optimizer.learning_rate` to the callback's "
            "`rate_at(updates)`.",
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WarmupPolynomialDecay":
        """Creates the schedule of a saved model, without the warning.

        Args:
            config: What `get_config` returned.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return cls(**config)

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
            _rising(warm, self.warmup_start, self.peak_learning_rate),
            _falling(done, self.peak_learning_rate, self.end_learning_rate, self.power),
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


def gradual_warmup(progress: Any, *, start: float, peak: float) -> Any:
    """Deprecated: returns the rate at a fraction of a linear warm-up.

    Args:
        progress: The fraction of the warm-up that is done, from 0 to 1.
        start: The rate at progress 0.
        peak: The rate at progress 1.
    """
    _deprecated("gradual_warmup", "Write `start + (peak - start) * progress`.")
    return _rising(progress, start, peak)


def polynomial_decay(
    progress: Any, *, peak: float, end: float, power: float = 2.0
) -> Any:
    """Deprecated: returns the rate at a fraction of a polynomial decay.

    Args:
        progress: The fraction of the decay that is done, from 0 to 1.
        peak: The rate at progress 0.
        end: The rate at progress 1.
        power: The exponent of the remaining fraction. Defaults to `2.0`.
    """
    _deprecated(
        "polynomial_decay",
        "Write `peak * Polynomial(1, end / peak, power)(progress)`.",
    )
    return _falling(progress, peak, end, power)


def warmup_polynomial(
    progress: float,
    *,
    warmup: float,
    peak: float,
    start: float = 0.0,
    end: float = 0.0,
    power: float = 2.0,
) -> float:
    """Deprecated: returns the rate at a fraction of a training.

    Args:
        progress: The fraction of the training that is done; 1 or more gives `end`.
        warmup: The fraction of the training that is warm-up, above 0 and below 1.
        peak: The rate at the end of the warm-up.
        start: The rate at progress 0. Defaults to `0.0`.
        end: The rate at progress 1. Defaults to `0.0`.
        power: The exponent of the decay. Defaults to `2.0`.
    """
    _deprecated(
        "warmup_polynomial",
        "Write `LearningRateWarmup(peak, warmup, Polynomial(1 - warmup, end / peak, "
        "power), start=start).rate_at(progress)`.",
    )
    if progress < warmup:
        return _rising(max(progress, 0.0) / warmup, start, peak)
    return _falling(min((progress - warmup) / (1 - warmup), 1.0), peak, end, power)


def _rising(progress: Any, start: float, peak: float) -> Any:
    return start * (1 - progress) + peak * progress


def _falling(progress: Any, peak: float, end: float, power: float) -> Any:
    return end + (peak - end) * (1 - progress) ** power


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(
        f"`{name}` is deprecated. {instead}", DeprecationWarning, stacklevel=3
    )
