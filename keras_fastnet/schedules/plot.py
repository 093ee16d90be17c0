"""Plots of learning rates and global batches."""

import os
from collections.abc import Callable, Mapping


def plot(
    rates: Mapping[str, Callable[[float], float]],
    epochs: float,
    path: str | os.PathLike[str],
    *,
    batches: Mapping[str, Mapping[int, int]] | None = None,
) -> None:
    """Plots learning rates by epoch to a file.

    Args:
        rates: Functions of the fractional epoch, by the name to show, such as `rate_at`
            of a `LearningRateWarmup`.
        epochs: Last epoch of the plot, which starts at 0.
        path: The file: PNG, PDF or SVG.
        batches: Global batches by the epoch from which they apply, as for
            `BatchGrowth`, by the same names; drawn below the rates. Defaults to `None`.

    Raises:
        ImportError: If Matplotlib is missing: `pip install matplotlib`.

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
            "Run `pip install matplotlib`."
        ) from error
    panels = 2 if batches else 1
    figure = Figure(figsize=(7.2, 1.2 + 2.8 * panels), dpi=150, layout="constrained")
    above, *below = figure.subplots(panels, squeeze=False)[:, 0]
    points = [epochs * part / 1000 for part in range(1001)]
    for name, rate in rates.items():
        above.plot(points, [rate(epoch) for epoch in points], label=name)
    above.set_ylabel("learning rate")
    above.legend(frameon=False)
    for name, phases in (batches or {}).items():
        sizes = list(phases.values())
        starts = [*phases, max(epochs, *phases)]
        below[0].step(starts, [*sizes, sizes[-1]], where="post", label=name)
        below[0].set_ylabel("global batch")
    for axes in (above, *below):
        axes.set_xlim(0, epochs)
        axes.set_ylim(bottom=0)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("epoch")
    figure.savefig(path)
