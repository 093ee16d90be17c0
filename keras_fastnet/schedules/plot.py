"""Plots of learning rates."""

import os
from collections.abc import Callable, Mapping


def plot(
    rates: Mapping[str, Callable[[float], float]],
    epochs: float,
    path: str | os.PathLike[str],
) -> None:
    """Plots learning rates by epoch to a file.

    Args:
        rates: Functions of the fractional epoch, by the name to show, such as `rate_at`
            of a `LearningRateWarmup`.
        epochs: Last epoch of the plot, which starts at 0.
        path: The file: PNG, PDF or SVG.

    Raises:
        ImportError: If Matplotlib is missing: `pip install "keras-fastnet[plot]"`.

    Example:

    ```python
    warmup = LearningRateWarmup(3.2, 5, Polynomial(85))
    plot({"polynomial": warmup.rate_at}, 90, "rates.png")
    ```
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Plots need Matplotlib. Received: an environment without it. "
            'Run `pip install "keras-fastnet[plot]"`.'
        ) from error
    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    points = [epochs * part / 1000 for part in range(1001)]
    for name, rate in rates.items():
        axes.plot(points, [rate(epoch) for epoch in points], label=name)
    axes.set_xlim(0, epochs)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel("learning rate")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
