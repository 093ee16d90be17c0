"""Shows a plan's predictions: as text, as JSON and as a plot."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_fastnet.collectives.cost_model import Algorithm, Topology
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.memory import Memory
from keras_fastnet.scaling.plan import (
    Plan,
    candidates,
    efficiencies,
    predicted_seconds,
    torus_grid,
)
from keras_fastnet.text import count, fact, table


def as_text(plan: Plan) -> str:
    """Returns a plan's predictions as text."""
    topology, costs = plan.topology, plan.costs
    found = candidates(plan)
    rows = [
        (
            candidate.algorithm,
            "" if candidate.grid is None else str(candidate.grid),
            f"{candidate.rounds:,}",
            f"{candidate.messages:,}",
            f"{candidate.sent_mb:,.3f}",
            f"{candidate.network_mb:,.3f}",
            f"{candidate.seconds * 1e3:,.3f}",
            "<- chosen" if candidate.chosen else "",
        )
        for candidate in found
    ]
    head = ("sum", "grid", "rounds", "messages", "MB sent", "MB network", "ms", "")
    model = f"{plan.model}, " if plan.model else ""
    cores = topology.cores
    lines = [
        fact(
            "cluster",
            f"{count(topology.ranks, 'rank')} on {count(topology.hosts, 'host')}, "
            f"{count(topology.cards, 'network card')} each"
            + ("" if cores is None else f", {count(cores, 'core')} each"),
        ),
        fact(
            "gradients",
            f"{model}{plan.parameters:,} in {plan.wire_dtype}, "
            f"{plan.nbytes / 1e6:,.3f} MB in {count(plan.buckets, 'bucket')}",
        ),
        fact(
            "in a host",
            _cost(costs.host_round, costs.host_message, costs.host_byte)
            + f"; copies {_bandwidth(costs.copied_byte)}",
        ),
        fact(
            "network",
            _cost(costs.network_round, costs.network_message, costs.network_byte),
        ),
        fact("a collective", f"{costs.collective * 1e6:,.1f} us to start"),
        fact("costs", plan.costs_from),
        "",
        *table([head, *rows], left=2),
        "",
    ]
    several = topology.hosts > 1 and topology.ranks_per_host > 1
    if several and costs.network_byte < costs.host_byte:
        lines += [
            "The network is faster than the host here. The model counts the network",
            "part of a ring only, so the time of the ring is underestimated.",
            "",
        ]
    if plan.memory is not None:
        lines += [*_memory(plan.memory), ""]
    if plan.compute_seconds is None:
        lines.append("Give --compute-ms for the efficiency.")
        return "\n".join(lines)
    seconds = plan.compute_seconds * 1e3
    lines.append(f"efficiency, computing {seconds:,.1f} ms ({plan.compute_from})")
    shown: list[Sequence[str]] = [("", "no overlap", "full overlap")]
    compared = (("ring", None), ("torus", torus_grid(plan, topology)))
    for candidate in found:
        if candidate.chosen or (candidate.algorithm, candidate.grid) in compared:
            pair = efficiencies(plan, topology, candidate.seconds)
            shown.append((candidate.name, *(f"{100 * e:.1f} %" for e in pair)))
    return "\n".join([*lines, *table(shown, left=1)])


def _memory(memory: Memory) -> list[str]:
    """Returns the lines about the memory of a replica."""
    rows = (
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, ""),
        (memory.optimizer, memory.slots, ""),
        ("accumulation", memory.accumulated, "with LargeBatchOptimizer"),
        ("activations", memory.activations, "kept for the gradients: peaks are higher"),
        ("in all", memory.total, ""),
    )
    head = f"memory of a replica, {count(memory.device_batch, 'example')} a step in "
    return [
        f"{head}{memory.precision}",
        *(f"{name:<12}  {n / 1e6:>10,.1f} MB  {why}".rstrip() for name, n, why in rows),
    ]


def as_json(plan: Plan) -> dict[str, Any]:
    """Returns a plan's predictions as an object for JSON."""
    found = candidates(plan)
    entries = []
    for candidate in found:
        grid = candidate.grid
        entry = dataclasses.asdict(candidate)
        entry["grid"] = None if grid is None else [grid.rows, grid.columns]
        if plan.compute_seconds is not None:
            pair = efficiencies(plan, plan.topology, candidate.seconds)
            entry["efficiency_no_overlap"], entry["efficiency_full_overlap"] = pair
        entries.append(entry)
    values = dataclasses.asdict(plan)
    # The keys that programs read.
    values["prices"], values["prices_from"] = (
        values.pop("costs"),
        values.pop("costs_from"),
    )
    if plan.memory is not None:
        values["memory"]["total"] = plan.memory.total
    return {**values, "nbytes": plan.nbytes, "candidates": entries}


def draw(plan: Plan, path: str) -> None:
    """Draws the efficiency of ring and torus over the number of ranks.

    Args:
        plan: The plan, with `compute_seconds`.
        path: The file to write.

    Raises:
        UsageError: If Matplotlib is missing, or the file cannot be written.
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
    growing = _growing(plan.topology)
    ranks = [topology.ranks for topology in growing]
    lines: tuple[tuple[Algorithm, str, str], ...] = (
        ("torus", "#0072b2", "o"),
        ("ring", "#d55e00", "s"),
    )
    for algorithm, color, marker in lines:
        pairs = [_efficiency_of(plan, t, algorithm) for t in growing]
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
    axes.set_xlabel(f"ranks, up to {plan.topology.ranks_per_host} on a host")
    axes.set_ylabel("weak-scaling efficiency")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    seconds = plan.compute_seconds or 0.0
    axes.set_title(
        f"Predicted for {plan.model or 'a model'}: {plan.nbytes / 1e6:,.1f} MB "
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


def _cost(round_: float, message: float, byte: float) -> str:
    start = f"{round_ * 1e6:,.1f} us a round, {message * 1e6:,.1f} us a message"
    return f"{start}, {_bandwidth(byte)}"


def _bandwidth(byte: float) -> str:
    return f"{1e-9 / byte:,.2f} GB/s" if byte else "free"


def _efficiency_of(
    plan: Plan, topology: Topology, algorithm: Algorithm
) -> tuple[float, float]:
    grid = torus_grid(plan, topology)
    seconds = predicted_seconds(plan, topology, algorithm, grid)
    return efficiencies(plan, topology, seconds)


def _growing(topology: Topology) -> list[Topology]:
    """Returns topologies of 1, 2, 4, … ranks. Each host is filled before the next."""
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
