"""`Plan`: a cluster, a model and unit costs, and what they predict."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from keras_fastnet.collectives.cost_model import (
    WIRE_BYTES,
    Algorithm,
    Topology,
    UnitCosts,
    all_reduce_seconds,
    cheapest_algorithm,
    cheapest_grid,
    work_of,
)
from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.applications import count_parameters
from keras_fastnet.scaling.bench_results import (
    Measurement,
    WeakScaling,
    read_measurements,
    read_weak_scaling,
)
from keras_fastnet.scaling.memory import Memory, memory_of_application

DEFAULT_COSTS = {
    "latency_us": 10.0,
    "overhead_us": 10.0,
    "bandwidth_gb": 5.0,
    "network_latency_us": 40.0,
    "network_overhead_us": 10.0,
    "network_bandwidth_gb": 1.25,
    "copy_bandwidth_gb": 10.0,
    "collective_us": 20.0,
}
"""Round figures for servers with 10 Gbit Ethernet, by option."""
_FIELDS = {
    "latency_us": "host_round",
    "overhead_us": "host_message",
    "bandwidth_gb": "host_byte",
    "network_latency_us": "network_round",
    "network_overhead_us": "network_message",
    "network_bandwidth_gb": "network_byte",
    "copy_bandwidth_gb": "copied_byte",
    "collective_us": "collective",
}
_MOST_RANKS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """A cluster, a model and unit costs, whose all-reduce time is predicted.

    Attributes:
        topology: The ranks' hosts.
        model: Name of the model, or `None`.
        parameters: The number of gradients.
        wire_dtype: The dtype that gradients are sent as.
        bucket_bytes: Size of a bucket of `float32` gradients.
        costs: The machine's unit costs.
        costs_from: The source of the costs.
        compute_seconds: Time of a step on one rank alone, if known.
        compute_from: The source of that time.
        memory: What a replica needs to train the model, if a batch is given.
    """

    topology: Topology
    model: str | None
    parameters: int
    wire_dtype: str
    bucket_bytes: int
    costs: UnitCosts
    costs_from: str
    compute_seconds: float | None
    compute_from: str
    memory: Memory | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's gradients, as sent."""
        return self.parameters * WIRE_BYTES[self.wire_dtype]

    @property
    def buckets(self) -> int:
        """The number of buckets that the gradients are sent in."""
        return math.ceil(self.parameters * WIRE_BYTES["float32"] / self.bucket_bytes)


def make_plan(
    *,
    ranks: int,
    hosts: int,
    cards: int,
    cores_per_host: int | None,
    model: str | None,
    parameters: int | None,
    wire_dtype: str,
    bucket_bytes: int,
    compute_ms: float | None,
    bench_files: Sequence[str],
    stated_costs: Mapping[str, float],
    device_batch: int | None = None,
    optimizer: str = "lars",
    precision: str = "float32",
) -> Plan:
    """Returns a plan, completed from the results of `fastnet bench` and the defaults.

    Args:
        ranks: The number of ranks.
        hosts: The number of hosts, with equally many ranks each.
        cards: Network cards of each host.
        cores_per_host: Processor cores of each host; `None` for those of the results.
        model: The name of one of Keras's applications, or `None`.
        parameters: The number of gradients, or `None`.
        wire_dtype: The dtype that gradients are sent as.
        bucket_bytes: Size of a bucket of `float32` gradients.
        compute_ms: Milliseconds of a step on one rank alone; `None` for that of the
            results.
        bench_files: Files that `fastnet bench` wrote.
        stated_costs: Costs by option, as in `DEFAULT_COSTS`. They override others.
        device_batch: Per-replica batch for the memory, which needs a model with a name.
            Defaults to `None`: the memory is left out.
        optimizer: One of `memory.SLOTS`. Defaults to `"lars"`.
        precision: The dtype policy, for the memory. Defaults to `"float32"`.

    Raises:
        UsageError: If the numbers contradict each other, or one is missing.
        ValueError: If a file cannot be read or its measurements are too few.
    """
    if ranks > _MOST_RANKS:
        raise UsageError(
            f"--ranks must be at most {_MOST_RANKS:,}. Received: {ranks:,}. "
            "Give the size of a cluster that exists."
        )
    if ranks % hosts:
        raise UsageError(
            "--hosts must divide --ranks, so that all hosts have equally many. "
            f"Received: --ranks {ranks} --hosts {hosts}. "
            f"These fit: {', '.join(_divisors_near(ranks, hosts))}."
        )
    measurements = [m for path in bench_files for m in read_measurements(path)]
    steps = [s for path in bench_files if (s := read_weak_scaling(path)) is not None]
    measured_cores = {m.topology.cores for m in measurements}
    if cores_per_host is None and len(measured_cores) == 1:
        cores_per_host = measured_cores.pop()
    name, gradients = _gradients(model, parameters, steps)
    compute, compute_from = _compute_time(compute_ms, steps, name, gradients)
    memory = None
    if device_batch is not None:
        if name is None:
            raise UsageError(
                "--device-batch needs a model, whose layers are built to sum their "
                "outputs. Received: --parameters. Give --model NAME."
            )
        memory = memory_of_application(name, device_batch, optimizer, precision)
    timed = measurements if bench_files else None
    costs, costs_from = _costs(stated_costs, timed, hosts)
    return Plan(
        topology=Topology(hosts, ranks // hosts, cards, cores_per_host),
        model=name,
        parameters=gradients,
        wire_dtype=wire_dtype,
        bucket_bytes=bucket_bytes,
        costs=costs,
        costs_from=costs_from,
        compute_seconds=compute,
        compute_from=compute_from,
        memory=memory,
    )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to sum the gradients, and its predicted cost for a rank.

    Attributes:
        algorithm: The algorithm.
        grid: The grid; `None` for the ring over all ranks.
        rounds: The number of times that a rank waits for messages.
        messages: The number of messages that a rank sends.
        sent_mb: Megabytes that a rank sends.
        network_mb: Megabytes of them that leave the host.
        seconds: The predicted time.
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
        """The algorithm and the grid, as text."""
        return self.algorithm if self.grid is None else f"{self.algorithm} {self.grid}"


def candidates(plan: Plan) -> list[Candidate]:
    """Returns the ring, the torus on every grid, and the gather on the chosen grid."""
    topology, costs = plan.topology, plan.costs
    nbytes, buckets = plan.nbytes, plan.buckets
    # With a card for each rank, `Work` counts bytes and no waits for a card.
    apart = dataclasses.replace(topology, cards=topology.ranks_per_host)
    best_grid = cheapest_grid(topology, costs, nbytes / buckets)
    best = cheapest_algorithm(best_grid, topology, costs, nbytes / buckets)
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
                seconds=predicted_seconds(plan, topology, algorithm, grid),
                chosen=(algorithm, grid) == (best, best_grid),
            )
        )
    return found


def predicted_seconds(
    plan: Plan, topology: Topology, algorithm: Algorithm, grid: Grid
) -> float:
    """Returns the predicted time of an all-reduce of the plan's gradients.

    Args:
        plan: The plan.
        topology: The ranks' hosts: the plan's, or fewer of them.
        algorithm: The algorithm.
        grid: The grid.
    """
    return all_reduce_seconds(
        algorithm,
        grid,
        topology,
        plan.costs,
        plan.nbytes,
        plan.buckets,
    )


def torus_grid(plan: Plan, topology: Topology) -> Grid:
    """Returns the grid of the torus that is compared with the ring.

    Args:
        plan: The plan.
        topology: The ranks' hosts: the plan's, or fewer of them.
    """
    if topology.hosts > 1 and topology.ranks_per_host > 1:
        return cheapest_grid(topology, plan.costs, plan.nbytes / plan.buckets)
    return min(
        grids_of(topology.ranks),
        key=lambda grid: predicted_seconds(plan, topology, "torus", grid),
    )


def efficiencies(
    plan: Plan, topology: Topology, all_reduce: float
) -> tuple[float, float]:
    """Returns the weak-scaling efficiency without and with full overlap.

    Args:
        plan: The plan, with `compute_seconds`.
        topology: The ranks' hosts.
        all_reduce: Seconds of the all-reduce.

    Raises:
        ValueError: If the plan has no `compute_seconds`.
    """
    alone = plan.compute_seconds
    if alone is None:
        raise ValueError("The plan must have `compute_seconds`. Received: None.")
    compute = alone * topology.ranks_per_core
    return alone / (compute + all_reduce), alone / max(compute, all_reduce)


def _divisors_near(ranks: int, hosts: int) -> list[str]:
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [str(n) for n in sorted(sorted(divisors, key=lambda n: abs(n - hosts))[:4])]


def _gradients(
    model: str | None, parameters: int | None, steps: Sequence[WeakScaling]
) -> tuple[str | None, int]:
    """Returns the model's name, if known, and its number of gradients."""
    if model is not None and parameters is not None:
        raise UsageError(
            "--model and --parameters both give the number of gradients. "
            "Received: both. Give one of them."
        )
    if model is not None:
        return count_parameters(model)
    if parameters is not None:
        return None, parameters
    if not steps:
        raise UsageError(
            "--model NAME or --parameters P must give the number of gradients. "
            "Received: neither, and no --bench with a model. "
            "Write, for example, `--model ResNet50`."
        )
    return steps[0].model, steps[0].parameters


def _compute_time(
    compute_ms: float | None,
    steps: Sequence[WeakScaling],
    model: str | None,
    parameters: int,
) -> tuple[float | None, str]:
    if compute_ms is not None:
        return compute_ms * 1e-3, "--compute-ms"
    for step in steps:
        if step.model == model or step.parameters == parameters:
            return step.compute_seconds, f"measured with {step.model}"
    return None, ""


def _costs(
    stated: Mapping[str, float], timed: Sequence[Measurement] | None, hosts: int
) -> tuple[UnitCosts, str]:
    sources = []
    if timed is not None:
        # NumPy takes a tenth of a second to import; help and errors do without.
        from keras_fastnet.scaling.cost_fit import fit_costs

        costs = fit_costs(timed)
        sources.append(f"fitted to {len(timed)} measurements")
        if all(m.topology.hosts == 1 for m in timed) and hosts > 1:
            sources.append("no network was measured")
    else:
        costs = _unit_costs(DEFAULT_COSTS)
        sources += ["defaults"] if len(stated) < len(DEFAULT_COSTS) else []
    overriding = _unit_costs({**DEFAULT_COSTS, **stated})
    changes = {_FIELDS[name]: getattr(overriding, _FIELDS[name]) for name in stated}
    if stated:
        options = ("--" + name.replace("_", "-") for name in stated)
        sources.append("stated by " + " ".join(options))
    return dataclasses.replace(costs, **changes), ", ".join(sources)


def _unit_costs(units: Mapping[str, float]) -> UnitCosts:
    """Returns unit costs from microseconds and gigabytes a second."""
    return UnitCosts(
        **{
            field: units[name] * 1e-6 if name.endswith("us") else 1e-9 / units[name]
            for name, field in _FIELDS.items()
        }
    )
