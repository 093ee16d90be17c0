"""Which grid and which algorithm a cluster uses."""

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

# Fitted to benchmarks/all_reduce and rounded; a network adds latency. Only their ratios
# matter for a choice.
_DEFAULT_PRICES = UnitCosts(
    host_round=1e-4,
    host_message=2.5e-4,
    host_byte=1.05e-9,
    network_round=2e-4,
    network_message=2.5e-4,
    network_byte=1.05e-9,
    copied_byte=7e-11,
    collective=7e-4,
)
# So that they choose what was the fastest there over MPI.
_MPI_PRICES = UnitCosts(
    host_round=0.0,
    host_message=6e-5,
    host_byte=5e-11,
    network_round=1e-4,
    network_message=6e-5,
    network_byte=5e-11,
    copied_byte=1.2e-10,
    collective=1.5e-4,
)
_ON_GRIDS: tuple[Algorithm, ...] = ("torus", "gather")
Engine = Literal["gRPC", "NCCL", "MPI"]
"""What carries vectors between ranks."""
DEFAULT_BUCKET_BYTES = 16 * 2**20
"""Size of a bucket of gradients, chosen by `benchmarks/weak_scaling` and
`benchmarks/all_reduce`."""


@dataclasses.dataclass(frozen=True)
class GridChoice:
    """A grid and what may run on it.

    Attributes:
        grid: The grid of ranks.
        algorithms: The algorithms to choose from for each vector.
        topology: The ranks' hosts.
        prices: What the choice between algorithms goes by.
    """

    grid: Grid
    algorithms: tuple[Algorithm, ...]
    topology: Topology
    prices: UnitCosts = _DEFAULT_PRICES

    def algorithm_for(self, nbytes: int) -> Algorithm:
        """Returns the cheapest of the algorithms for a vector of `nbytes`."""
        return cheapest_algorithm(
            self.grid, self.topology, self.prices, nbytes, self.algorithms
        )


def choose_grid(
    wanted: object, hosts: Sequence[str], bucket_bytes: int, engine: Engine
) -> GridChoice:
    """Chooses grid and algorithms.

    Args:
        wanted: `"auto"`, `"ring"` or `(rows, columns)`.
        hosts: Each rank's host, by rank.
        bucket_bytes: The usual size of a vector.
        engine: What carries vectors. NCCL has short messages of its own, and picks a
            ring or tree by the machine it finds; so with `"auto"` it is left to that.

    Raises:
        ValueError: `wanted` is none of these, or does not fit.
    """
    topology = Topology.of(hosts)
    if wanted == "ring":
        return GridChoice(Grid(len(hosts), 1), ("ring",), topology)
    prices = _MPI_PRICES if engine == "MPI" else _DEFAULT_PRICES
    # Over MPI a flat sum is the torus on one row, and so it is on one column.
    rings = engine != "MPI"
    among: tuple[Algorithm, ...] = ALGORITHMS if rings else _ON_GRIDS
    if wanted == "auto":
        grid = cheapest_grid(
            topology, prices, 4096, bucket_bytes, among=among, columns=rings
        )
        return GridChoice(
            grid, ("ring",) if engine == "NCCL" else among, topology, prices
        )
    grid = check_grid(wanted, len(hosts))
    on_grid: tuple[Algorithm, ...] = ("torus",) if engine == "NCCL" else _ON_GRIDS
    return GridChoice(grid, on_grid, topology, prices)
