"""Which grid and which algorithm a cluster uses."""

import dataclasses
from collections.abc import Sequence

from keras_fastnet.collectives.cost_model import (
    ALGORITHMS,
    Algorithm,
    Prices,
    Topology,
    cheapest_algorithm,
    cheapest_grid,
)
from keras_fastnet.collectives.grid import Grid, check_grid

# Fitted to benchmarks/all_reduce and rounded; a network adds latency. Only their ratios
# matter for a choice.
_DEFAULT_PRICES = Prices(
    host_round=1e-4,
    host_message=2.5e-4,
    host_byte=1.05e-9,
    network_round=2e-4,
    network_message=2.5e-4,
    network_byte=1.05e-9,
    copied_byte=7e-11,
    collective=7e-4,
)
DEFAULT_BUCKET_BYTES = 16 * 2**20
"""Size of a bucket of gradients, chosen by `benchmarks/weak_scaling` and
`benchmarks/all_reduce`."""


@dataclasses.dataclass(frozen=True)
class Choice:
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
    prices: Prices = _DEFAULT_PRICES

    def algorithm_for(self, nbytes: int) -> Algorithm:
        """Returns the cheapest of the algorithms for a vector of `nbytes`."""
        return cheapest_algorithm(
            self.grid, self.topology, self.prices, nbytes, self.algorithms
        )


def choose(
    wanted: object, hosts: Sequence[str], bucket_bytes: int, nccl: bool
) -> Choice:
    """Chooses grid and algorithms.

    Args:
        wanted: `"auto"`, `"ring"` or `(rows, columns)`.
        hosts: Each rank's host, by rank.
        bucket_bytes: The usual size of a vector.
        nccl: Whether NCCL connects the ranks. It has short messages of its own, and
            picks a ring or tree by the machine it finds; so with `"auto"` it is left
            to that.

    Raises:
        ValueError: `wanted` is none of these, or does not fit.
    """
    topology = Topology.of(hosts)
    if wanted == "ring":
        return Choice(Grid(len(hosts), 1), ("ring",), topology)
    if wanted == "auto":
        grid = cheapest_grid(topology, _DEFAULT_PRICES, 4096, bucket_bytes)
        return Choice(grid, ("ring",) if nccl else ALGORITHMS, topology)
    grid = check_grid(wanted, len(hosts))
    return Choice(grid, ("torus",) if nccl else ("torus", "gather"), topology)
