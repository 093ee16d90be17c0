"""The plot of `fastnet plan`: efficiency over the number of ranks."""

import dataclasses

from keras_fastnet.collectives.cost_model import Algorithm, Topology
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.plan_question import Question
from keras_fastnet.scaling.plan_report import (
    efficiencies,
    predicted_seconds,
    torus_grid,
)


def draw(question: Question, path: str) -> None:
    """Draws the efficiency of ring and torus over the number of ranks.

    Raises:
        UsageError: Matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullLocator
    except ImportError as error:
        raise UsageError(
            "--plot needs Matplotlib. Received: an environment without it. "
            'Run `pip install "keras-fastnet[plot]"`.'
        ) from error
    figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    growing = _growing(question.topology)
    ranks = [topology.ranks for topology in growing]
    lines: tuple[tuple[Algorithm, str, str], ...] = (
        ("torus", "#0072b2", "o"),
        ("ring", "#d55e00", "s"),
    )
    for algorithm, color, marker in lines:
        pairs = [_efficiency_of(question, t, algorithm) for t in growing]
        for index, style, overlap in (
            (0, "-", "no overlap"),
            (1, "--", "full overlap"),
        ):
            axes.plot(
                ranks,
                [100 * pair[index] for pair in pairs],
                style,
                color=color,
                marker=marker,
                markersize=4,
                label=f"{algorithm}, {overlap}",
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.set_ylim(0, 104)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel(f"ranks, up to {question.topology.ranks_per_host} on a host")
    axes.set_ylabel("weak-scaling efficiency")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    seconds = question.compute_seconds or 0.0
    axes.set_title(
        f"Predicted for {question.model or 'a model'}: {question.nbytes / 1e6:,.1f} MB "
        f"of gradients, {seconds * 1e3:,.0f} ms of computation",
        fontsize=10,
    )
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=4)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            "--plot must name a file that can be written, a PNG, PDF or SVG. "
            f"Received: {path} ({error}). Write, for example, `--plot plan.png`."
        ) from error


def _efficiency_of(
    question: Question, topology: Topology, algorithm: Algorithm
) -> tuple[float, float]:
    grid = torus_grid(question, topology)
    seconds = predicted_seconds(question, topology, algorithm, grid)
    return efficiencies(question, topology, seconds)


def _growing(topology: Topology) -> list[Topology]:
    """Returns one rank, twice as many and so on: a host is filled before the next."""
    sizes = {topology.ranks_per_host, topology.ranks}
    for start, end in (
        (1, topology.ranks_per_host),
        (topology.ranks_per_host, topology.ranks),
    ):
        while start < end:
            sizes.add(start)
            start *= 2
    return [
        dataclasses.replace(
            topology,
            hosts=max(1, size // topology.ranks_per_host),
            ranks_per_host=min(size, topology.ranks_per_host),
        )
        for size in sorted(sizes)
    ]
