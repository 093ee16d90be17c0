"""Gradual warm-up followed by polynomial decay, as functions of progress.

`gradual_warmup` and `polynomial_decay` are plain arithmetic, so they take Python
floats, NumPy arrays and tensors.
"""

from typing import Any


def gradual_warmup(progress: Any, *, start: float, peak: float) -> Any:
    """Returns the rate during a linear warm-up.

    Args:
        progress: The fraction of the warm-up that is done, from 0 to 1.
        start: The rate at progress 0.
        peak: The rate at progress 1.

    Returns:
        The rate.

    Example:

    >>> [gradual_warmup(part / 4, start=0.0, peak=8.0) for part in range(5)]
    [0.0, 2.0, 4.0, 6.0, 8.0]

    References:
        - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), section 2.2
    """
    # A weighted mean of both ends, so that progress 1 gives exactly `peak`.
    return start * (1 - progress) + peak * progress


def polynomial_decay(
    progress: Any, *, peak: float, end: float, power: float = 2.0
) -> Any:
    """Returns the rate during a polynomial decay.

    Args:
        progress: The fraction of the decay that is done, from 0 to 1.
        peak: The rate at progress 0.
        end: The rate at progress 1.
        power: The exponent of the remaining fraction. Defaults to `2.0` (You et al.).

    Returns:
        The rate.

    Example:

    >>> [polynomial_decay(part / 4, peak=16.0, end=0.0) for part in range(5)]
    [16.0, 9.0, 4.0, 1.0, 0.0]

    References:
        - [You et al., 2017](https://arxiv.org/abs/1708.03888)
    """
    return end + (peak - end) * (1 - progress) ** power


def warmup_polynomial(
    progress: float,
    *,
    warmup: float,
    peak: float,
    start: float = 0.0,
    end: float = 0.0,
    power: float = 2.0,
) -> float:
    """Returns the rate during a training: warm-up, then decay, then `end`.

    Args:
        progress: The fraction of the training that is done, such as `epoch / epochs`
            with a fractional `epoch`; 1 or more gives `end`.
        warmup: The fraction of the training that is warm-up, above 0 and below 1.
        peak: The rate at the end of the warm-up.
        start: The rate at progress 0. Defaults to `0.0`.
        end: The rate at progress 1. Defaults to `0.0`.
        power: The exponent of the decay. Defaults to `2.0` (You et al.).

    Returns:
        The rate.

    Example:

    Ninety epochs at batch 32,768, 14 of them warm-up:

    >>> for epoch in (0, 7, 14, 52, 90):
    ...     print(warmup_polynomial(epoch / 90, warmup=14 / 90, peak=32.0))
    0.0
    16.0
    32.0
    8.0
    0.0
    """
    if progress < warmup:
        return gradual_warmup(max(progress, 0.0) / warmup, start=start, peak=peak)
    done = min((progress - warmup) / (1 - warmup), 1.0)
    return polynomial_decay(done, peak=peak, end=end, power=power)
