"""Chooses the grid of ranks, and the algorithm for each vector."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from keras_fastnet.collectives.cost_model import (
    ALGORITHMS,
    Algorithm,
    Topology,
    UnitCosts,
    cheapest_algorithm,
    cheapest_grid,
)
from keras_fastnet.collectives.grid import Grid, check_grid

# Fitted to benchmarks/all_reduce and rounded, with latency added for a network. The
# cost of a network byte lies between those fitted at 10 and at 1 Gbit/s over gRPC in
# benchmarks/two_hosts, so that the fastest algorithms are chosen at both speeds.
# Only the ratios of the costs affect the choice.
_DEFAULT_COSTS = UnitCosts(
    host_round=1e-4,
    host_message=2.5e-4,
    host_byte=1.05e-9,
    network_round=2e-4,
    network_message=2.5e-4,
    network_byte=6e-9,
    copied_byte=7e-11,
    collective=7e-4,
)
# Set so that the fastest algorithm over MPI in benchmarks/all_reduce is chosen.
_MPI_COSTS = UnitCosts(
    host_round=0.0,
    host_message=6e-5,
    host_byte=5e-11,
    network_round=1e-4,
    network_message=6e-5,
    network_byte=5e-11,
    copied_byte=1.2e-10,
    collective=1.5e-4,
)
_GRID_ALGORITHMS: tuple[Algorithm, ...] = ("torus", "gather")
Engine = Literal["gRPC", "NCCL", "MPI"]
"""The library that carries vectors between ranks."""
DEFAULT_BUCKET_BYTES = 16 * 2**20
"""Bytes of a gradient bucket over gRPC and MPI. In `benchmarks/weak_scaling` such
buckets are faster than a single one."""
NCCL_BUCKET_BYTES = 64 * 2**20
"""Bytes of a gradient bucket over NCCL. By the model of `cost_model`, on the systems of
`benchmarks/plan`, ResNet-50's gradients in such buckets take 1.1 to 1.4 times as long
as in one, in buckets of 16 MiB 1.6 to 3.4 times."""


@dataclasses.dataclass(frozen=True)
class GridChoice:
    """A grid and the algorithms that may run on it.

    Attributes:
        grid: The grid of ranks.
        algorithms: The algorithms to choose from for each vector.
        topology: The ranks' hosts.
        costs: Unit costs for choosing between algorithms.
    """

    grid: Grid
    algorithms: tuple[Algorithm, ...]
    topology: Topology
    costs: UnitCosts = _DEFAULT_COSTS

    def algorithm_for(self, nbytes: int) -> Algorithm:
        """Returns the cheapest of the algorithms for a vector of `nbytes` bytes."""
        return cheapest_algorithm(
            self.grid, self.topology, self.costs, nbytes, self.algorithms
        )


def choose_grid(
    wanted: object, hosts: Sequence[str], bucket_bytes: int, engine: Engine
) -> GridChoice:
    """Chooses the grid and the algorithms.

    Args:
        wanted: `"auto"`, `"ring"` or `(rows, columns)`.
        hosts: Each rank's host, by rank.
        bucket_bytes: The usual size of a vector in bytes.
        engine: The library that carries vectors. NCCL has its own algorithms for short
            messages and chooses between ring and tree by the hardware it finds, so
            `"auto"` leaves the algorithm to NCCL: the model's error is larger than what
            a torus of three calls could gain (`benchmarks/plan`).

    Raises:
        ValueError: If `wanted` is none of these, or the grid does not hold all ranks.
    """
    topology = Topology.of(hosts)
    if wanted == "ring":
        return GridChoice(Grid(len(hosts), 1), ("ring",), topology)
    costs = _MPI_COSTS if engine == "MPI" else _DEFAULT_COSTS
    # Over MPI a ring over all ranks is the torus on one row or one column.
    rings = engine != "MPI"
    among: tuple[Algorithm, ...] = ALGORITHMS if rings else _GRID_ALGORITHMS
    if wanted == "auto":
        grid = cheapest_grid(
            topology, costs, 4096, bucket_bytes, among=among, columns=rings
        )
        return GridChoice(
            grid, ("ring",) if engine == "NCCL" else among, topology, costs
        )
    grid = check_grid(wanted, len(hosts))
    among = ("torus",) if engine == "NCCL" else _GRID_ALGORITHMS
    return GridChoice(grid, among, topology, costs)
