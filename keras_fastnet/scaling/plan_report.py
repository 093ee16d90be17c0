"""What `fastnet plan` answers: candidates and efficiency."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_fastnet.collectives.cost_model import (
    Algorithm,
    Topology,
    all_reduce_seconds,
    cheapest_algorithm,
    cheapest_grid,
    work_of,
)
from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.scaling.plan_question import Question
from keras_fastnet.text import fact, table


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to sum, and what it costs a rank.

    Attributes:
        algorithm: The algorithm.
        grid: The grid; None for the ring over all ranks.
        rounds: Times that a rank waits for messages.
        messages: Messages that it sends.
        sent_mb: Megabytes that a rank sends.
        network_mb: Those that leave the host.
        seconds: Predicted time.
        chosen: Whether `TorusStrategy` would choose it.
    """

    algorithm: Algorithm
    grid: Grid | None
    rounds: int
    messages: int
    sent_mb: float
    network_mb: float
    seconds: float
    chosen: bool

    @property
    def name(self) -> str:
        """How people call it."""
        return self.algorithm if self.grid is None else f"{self.algorithm} {self.grid}"


def candidates(question: Question) -> list[Candidate]:
    """Returns the ring, the torus on every grid, and gathering on the chosen grid."""
    topology, prices = question.topology, question.prices
    nbytes, buckets = question.nbytes, question.buckets
    # A card for each rank: `Work` then counts bytes, not waits for a card.
    apart = dataclasses.replace(topology, cards=topology.ranks_per_host)
    best_grid = cheapest_grid(topology, prices, nbytes / buckets)
    best = cheapest_algorithm(best_grid, topology, prices, nbytes / buckets)
    ways: list[tuple[Algorithm, Grid]] = [("ring", best_grid)]
    ways += [("torus", grid) for grid in grids_of(topology.ranks)]
    ways += [("gather", best_grid)]
    found = []
    for algorithm, grid in ways:
        work = work_of(algorithm, grid, apart, nbytes, buckets)
        found.append(
            Candidate(
                algorithm=algorithm,
                grid=None if algorithm == "ring" else grid,
                rounds=round(work.host_rounds + work.network_rounds),
                messages=round(work.host_messages + work.network_messages),
                sent_mb=(work.host_bytes + work.network_bytes) / 1e6,
                network_mb=work.network_bytes / 1e6,
                seconds=predicted_seconds(question, topology, algorithm, grid),
                chosen=(algorithm, grid) == (best, best_grid),
            )
        )
    return found


def predicted_seconds(
    question: Question, topology: Topology, algorithm: Algorithm, grid: Grid
) -> float:
    """Returns the predicted time of one way to sum.

    Args:
        question: The question.
        topology: The ranks' hosts, of the question or fewer.
        algorithm: The algorithm.
        grid: The grid.
    """
    return all_reduce_seconds(
        algorithm,
        grid,
        topology,
        question.prices,
        question.nbytes,
        question.buckets,
    )


def torus_grid(question: Question, topology: Topology) -> Grid:
    """Returns the grid on which a torus is compared with a ring.

    Args:
        question: The question.
        topology: The ranks' hosts, of the question or fewer.
    """
    if topology.hosts > 1 and topology.ranks_per_host > 1:
        return cheapest_grid(
            topology, question.prices, question.nbytes / question.buckets
        )
    return min(
        grids_of(topology.ranks),
        key=lambda grid: predicted_seconds(question, topology, "torus", grid),
    )


def efficiencies(
    question: Question, topology: Topology, all_reduce: float
) -> tuple[float, float]:
    """Returns the weak-scaling efficiency without and with full overlap.

    Args:
        question: The question, which knows the time of a step's computation.
        topology: The ranks' hosts.
        all_reduce: Seconds of the all-reduce.
    """
    alone = question.compute_seconds
    if alone is None:
        raise ValueError("The time of a step's computation must be known.")
    compute = alone * topology.ranks_per_core
    return alone / (compute + all_reduce), alone / max(compute, all_reduce)


def as_text(question: Question) -> str:
    """Returns the answer for people."""
    topology, prices = question.topology, question.prices
    found = candidates(question)
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
    model = f"{question.model}, " if question.model else ""
    cores = topology.cores
    lines = [
        fact(
            "cluster",
            f"{_count(topology.ranks, 'rank')} on {_count(topology.hosts, 'host')}, "
            f"{_count(topology.cards, 'network card')} each"
            + ("" if cores is None else f", {_count(cores, 'core')} each"),
        ),
        fact(
            "gradients",
            f"{model}{question.parameters:,} in {question.wire_dtype}, "
            f"{question.nbytes / 1e6:,.3f} MB in {_count(question.buckets, 'bucket')}",
        ),
        fact(
            "in a host",
            _price(prices.host_round, prices.host_message, prices.host_byte)
            + f"; copies {_bandwidth(prices.copied_byte)}",
        ),
        fact(
            "network",
            _price(prices.network_round, prices.network_message, prices.network_byte),
        ),
        fact("a collective", f"{prices.collective * 1e6:,.1f} us to start"),
        fact("prices", question.prices_from),
        "",
        *table([head, *rows], left=2),
        "",
    ]
    several = topology.hosts > 1 and topology.ranks_per_host > 1
    if several and prices.network_byte < prices.host_byte:
        lines += [
            "The network is faster than the host here. Of a ring only the network is",
            "counted, so the time of the ring is underestimated.",
            "",
        ]
    if question.compute_seconds is None:
        lines.append("Give --compute-ms for the efficiency.")
        return "\n".join(lines)
    seconds = question.compute_seconds * 1e3
    lines.append(f"efficiency, computing {seconds:,.1f} ms ({question.compute_from})")
    shown: list[Sequence[str]] = [("", "no overlap", "full overlap")]
    compared = (("ring", None), ("torus", torus_grid(question, topology)))
    for candidate in found:
        if candidate.chosen or (candidate.algorithm, candidate.grid) in compared:
            pair = efficiencies(question, topology, candidate.seconds)
            shown.append((candidate.name, *(f"{100 * e:.1f} %" for e in pair)))
    return "\n".join([*lines, *table(shown, left=1)])


def as_json(question: Question) -> dict[str, Any]:
    """Returns the answer for programs."""
    found = candidates(question)
    entries = []
    for candidate in found:
        grid = candidate.grid
        entry = dataclasses.asdict(candidate)
        entry["grid"] = None if grid is None else [grid.rows, grid.columns]
        if question.compute_seconds is not None:
            pair = efficiencies(question, question.topology, candidate.seconds)
            entry["efficiency_no_overlap"], entry["efficiency_full_overlap"] = pair
        entries.append(entry)
    return {
        **dataclasses.asdict(question),
        "nbytes": question.nbytes,
        "candidates": entries,
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _price(round_: float, message: float, byte: float) -> str:
    start = f"{round_ * 1e6:,.1f} us a round, {message * 1e6:,.1f} us a message"
    return f"{start}, {_bandwidth(byte)}"


def _bandwidth(byte: float) -> str:
    return f"{1e-9 / byte:,.2f} GB/s" if byte else "free"
