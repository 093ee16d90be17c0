"""Rules that scale the learning rate with the batch."""

import math

from keras_fastnet.arguments import checked_integer, checked_number


class ScaledRate(float):
    """A learning rate with its derivation.

    Attributes:
        derivation: The arithmetic, for messages.
    """

    derivation: str

    def __new__(cls, rate: float, derivation: str) -> "ScaledRate":
        """Creates the rate.

        Args:
            rate: Its value.
            derivation: The arithmetic.
        """
        scaled = super().__new__(cls, rate)
        scaled.derivation = derivation
        return scaled

    # `float.__reduce__` would copy the number alone.
    def __reduce__(self) -> tuple[type["ScaledRate"], tuple[float, str]]:
        return ScaledRate, (float(self), self.derivation)


def linear_scaling(rate: float, batch: int, base_batch: int = 256) -> ScaledRate:
    """Returns the rate scaled in proportion to the batch.

    Args:
        rate: The rate at `base_batch`.
        batch: The global batch.
        base_batch: The batch that `rate` was tuned for. Defaults to `256` (Goyal et
            al. 2017, arXiv 1706.02677, section 2.1).

    Example:

    >>> rate = linear_scaling(0.1, 8192)
    >>> rate, rate.derivation
    (3.2, '0.1 x 8,192 / 256 = 3.2, linear scaling')
    """
    growth = _growth(rate, batch, base_batch)
    return _scaled(rate, growth, f"{batch:,} / {base_batch:,}", "linear")


def square_root_scaling(rate: float, batch: int, base_batch: int = 256) -> ScaledRate:
    """Returns the rate scaled by the square root of the batch.

    This keeps the variance of an update (Krizhevsky 2014, arXiv 1404.5997, section 5).

    Args:
        rate: The rate at `base_batch`.
        batch: The global batch.
        base_batch: The batch that `rate` was tuned for. Defaults to `256`.

    Example:

    >>> square_root_scaling(0.1, 1024).derivation
    '0.1 x sqrt(1,024 / 256) = 0.2, square-root scaling'
    """
    growth = math.sqrt(_growth(rate, batch, base_batch))
    return _scaled(rate, growth, f"sqrt({batch:,} / {base_batch:,})", "square-root")


def _growth(rate: float, batch: int, base_batch: int) -> float:
    checked_number("rate", rate, above=0.0)
    checked_integer("batch", batch, at_least=1)
    return batch / checked_integer("base_batch", base_batch, at_least=1)


def _scaled(rate: float, growth: float, shown: str, name: str) -> ScaledRate:
    result = rate * growth
    return ScaledRate(result, f"{rate:g} x {shown} = {result:g}, {name} scaling")
