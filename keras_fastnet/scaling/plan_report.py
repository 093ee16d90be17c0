"""Shows a plan's predictions as text."""

from collections.abc import Sequence

from keras_fastnet.collectives.cost_model import UnitCosts
from keras_fastnet.scaling.memory import Memory
from keras_fastnet.scaling.plan import Plan
from keras_fastnet.text import count, fact, table


def as_text(plan: Plan, memory: Memory | None = None) -> str:
    """Returns a plan's predictions as text.

    Args:
        plan: The plan.
        memory: What a replica needs to train the model. Defaults to `None`.
    """
    topology, gradients = plan.topology, plan.gradients
    model = f"{gradients.model}, " if gradients.model else ""
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
            f"{model}{gradients.parameters:,} in {gradients.wire_dtype}, "
            f"{gradients.nbytes / 1e6:,.3f} MB in {count(gradients.buckets, 'bucket')}",
        ),
        *_costs(plan),
        "",
        *_table(plan),
    ]
    if plan.compute_seconds is None:
        lines += ["", "Give --compute-ms for the time of a step and the efficiency."]
    return "\n".join([*lines, *_memory(memory)])


def _costs(plan: Plan) -> list[str]:
    costs = plan.costs
    if not isinstance(costs, UnitCosts):
        return [
            fact(
                "NCCL",
                f"{costs.latency * 1e6:,.1f} us, {costs.bandwidth / 1e9:,.1f} GB/s",
            )
        ]
    host = _link(costs.host_round, costs.host_message, costs.host_byte)
    network = _link(costs.network_round, costs.network_message, costs.network_byte)
    return [
        fact("in a host", f"{host}; copies {_bandwidth(costs.copied_byte)}"),
        fact("network", network),
        fact("a collective", f"{costs.collective * 1e6:,.1f} us to start"),
        fact("costs", plan.costs_from),
    ]


def _table(plan: Plan) -> list[str]:
    head = ["sum", "grid", "MB network", "ms"]
    timed = plan.compute_seconds is not None
    if timed:
        head += ["step, ms", "efficiency", "with full overlap"]
    rows: list[Sequence[str]] = [(*head, "")]
    for candidate in plan.candidates():
        row = [
            candidate.name,
            "" if candidate.grid is None else str(candidate.grid),
            f"{candidate.network_mb:,.3f}",
            f"{candidate.seconds * 1e3:,.3f}",
        ]
        if plan.compute_seconds is not None:
            compute, all_reduce = plan.compute_seconds, candidate.seconds
            apart, overlapped = plan.step_seconds(compute, all_reduce)
            row += [
                f"{apart * 1e3:,.1f}",
                f"{100 * compute / apart:.1f} %",
                f"{100 * compute / overlapped:.1f} %",
            ]
        rows.append((*row, "<- chosen" if candidate.chosen else ""))
    if not isinstance(plan.costs, UnitCosts):
        rows = [(row[0], *row[3:]) for row in rows]
        return table(rows, left=1)
    return table(rows, left=2)


def _memory(memory: Memory | None) -> list[str]:
    """Returns the lines about the memory of a replica."""
    if memory is None:
        return []
    rows = (
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, ""),
        (memory.optimizer, memory.slots, ""),
        ("accumulation", memory.accumulated, "with LargeBatchOptimizer"),
        ("activations", memory.activations, "kept for the gradients: peaks are higher"),
        ("in all", memory.total, ""),
    )
    return [
        "",
        f"memory of a replica, {count(memory.device_batch, 'example')} a step in "
        f"{memory.precision}",
        *(f"{name:<12}  {n / 1e6:>10,.1f} MB  {why}".rstrip() for name, n, why in rows),
    ]


def _link(round_: float, message: float, byte: float) -> str:
    start = f"{round_ * 1e6:,.1f} us a round, {message * 1e6:,.1f} us a message"
    return f"{start}, {_bandwidth(byte)}"


def _bandwidth(byte: float) -> str:
    return f"{1e-9 / byte:,.2f} GB/s" if byte else "free"
