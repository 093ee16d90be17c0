"""What an all-reduce costs: messages, bytes and copies, and what they take in time.

The model is linear. An algorithm on a grid has an amount of `Work`; a machine has
`Prices`; the predicted time is their product. So the same lines serve to choose an
algorithm, to plan a cluster and, solved for the prices, to learn them from
measurements.

It is the usual model of a message's start-up time and a link's bandwidth (Thakur,
Rabenseifner and Gropp 2005, section 3), with one more term for copies in memory.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from keras_fastnet.collectives.grid import Grid, grids_of

Algorithm = Literal["ring", "torus", "gather"]
"""How a sum is computed.

- `"ring"`: one ring over all ranks.
- `"torus"`: reduce-scatter along the rows, all-reduce along the columns, all-gather
  along the rows.
- `"gather"`: every rank gathers the whole vectors of its row and adds them, then
  the row sums of its column. Few messages, many bytes: for small vectors.
"""
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclasses.dataclass(frozen=True)
class Topology:
    """How the ranks are spread over hosts.

    Attributes:
        hosts: Number of hosts.
        ranks_per_host: Ranks on each. Where hosts have different numbers, 1: then
            nothing is known to be near.
        cards: Network cards of each host, which its ranks share.
    """

    hosts: int
    ranks_per_host: int
    cards: int = 1

    @classmethod
    def of(cls, hosts: Sequence[str]) -> "Topology":
        """Returns the topology of ranks, given each rank's host."""
        counts = {hosts.count(host) for host in hosts}
        if len(counts) > 1:
            return cls(hosts=len(hosts), ranks_per_host=1)
        return cls(hosts=len(set(hosts)), ranks_per_host=counts.pop())

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host


@dataclasses.dataclass(frozen=True)
class Work:
    """What one rank does in an all-reduce, one thing after the other.

    Attributes:
        host_messages: Messages to ranks on the same host.
        host_bytes: Their bytes.
        network_messages: Messages to other hosts.
        network_bytes: Their bytes, times the ranks that share a network card.
        copied_bytes: Bytes read or written in local sums and copies, beyond those
            of a ring.
    """

    host_messages: float = 0.0
    host_bytes: float = 0.0
    network_messages: float = 0.0
    network_bytes: float = 0.0
    copied_bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            *(
                a + b
                for a, b in zip(
                    dataclasses.astuple(self), dataclasses.astuple(other), strict=True
                )
            )
        )


@dataclasses.dataclass(frozen=True)
class Prices:
    """Seconds for each unit of `Work`.

    Attributes:
        host_message: For a message within a host, however short.
        host_byte: For each byte of it.
        network_message: For a message to another host, however short.
        network_byte: For each byte of it, on a network card of one's own.
        copied_byte: For each byte read or written in memory.
    """

    host_message: float
    host_byte: float
    network_message: float
    network_byte: float
    copied_byte: float

    def seconds(self, work: Work) -> float:
        """Returns the predicted time of `work`."""
        return sum(
            price * amount
            for price, amount in zip(
                dataclasses.astuple(self), dataclasses.astuple(work), strict=True
            )
        )


def oversubscription(topology: Topology, cores_per_host: int | None) -> float:
    """Returns how much longer everything takes where ranks share processor cores.

    `Prices` are those of a rank with a core of its own: a measurement is divided by
    this factor, a prediction multiplied.

    Args:
        topology: The ranks' hosts.
        cores_per_host: Processor cores of each host. None for enough of them.
    """
    if cores_per_host is None:
        return 1.0
    return max(1.0, topology.ranks_per_host / cores_per_host)


def work_of(
    algorithm: Algorithm, grid: Grid, topology: Topology, nbytes: float
) -> Work:
    """Returns what one rank does to sum vectors of `nbytes` over all ranks.

    Args:
        algorithm: The algorithm.
        grid: The grid; a ring does not look at its shape.
        topology: The ranks' hosts. Rows hold ranks of one host where they fit.
        nbytes: Bytes of each rank's vector.
    """
    ranks, rows, columns = grid.size, grid.rows, grid.columns
    if algorithm == "ring":
        # In every step one rank of each host sends to the next host, and the others
        # wait for it.
        ring = 2 * (ranks - 1)
        return _messages(topology.hosts > 1, ring, ring * nbytes / ranks, sharing=1.0)
    row_leaves_host = topology.ranks_per_host % columns > 0
    column_leaves_host = topology.hosts > 1
    sharing = max(1.0, topology.ranks_per_host / topology.cards)
    if algorithm == "torus":
        row = 2 * (columns - 1)
        column = 2 * (rows - 1)
        # A row exchanges, everyone with everyone. A column is a ring, like the one
        # over all ranks: one of its ranks on each host sends to the next host.
        crossing = min(columns, topology.ranks_per_host)
        column_sharing = max(1.0, crossing / topology.cards)
        return (
            _messages(row_leaves_host, row, row * nbytes / columns, sharing)
            + _messages(
                column_leaves_host, column, column * nbytes / ranks, column_sharing
            )
            # The exchange's result is written, read by the sum, and the gathered
            # chunks are written once more.
            + Work(copied_bytes=3 * nbytes if columns > 1 else 0)
        )
    row, column = columns - 1, rows - 1
    return (
        _messages(row_leaves_host, row, row * nbytes, sharing)
        + _messages(column_leaves_host, column, column * nbytes, sharing)
        # Copies to send, copies received, and their sum.
        + Work(copied_bytes=3 * nbytes * (columns * (columns > 1) + rows * (rows > 1)))
    )


def cheapest_algorithm(
    grid: Grid, topology: Topology, prices: Prices, nbytes: float
) -> Algorithm:
    """Returns the algorithm that is predicted to be the fastest.

    Args:
        grid: The grid.
        topology: The ranks' hosts.
        prices: The machine's prices.
        nbytes: Bytes of each rank's vector.
    """
    return min(
        ALGORITHMS,
        key=lambda name: prices.seconds(work_of(name, grid, topology, nbytes)),
    )


def cheapest_grid(topology: Topology, prices: Prices, nbytes: float) -> Grid:
    """Returns the grid for a cluster.

    Ranks on one host form a row, so that only the sums of a host cross the network.
    Where there is one rank per host, or one host, it is the cheapest grid.

    Args:
        topology: The ranks' hosts.
        prices: The machine's prices.
        nbytes: Bytes of each rank's vector.
    """
    if topology.hosts > 1 and topology.ranks_per_host > 1:
        return Grid(topology.hosts, topology.ranks_per_host)
    return min(
        grids_of(topology.ranks),
        key=lambda grid: prices.seconds(work_of("torus", grid, topology, nbytes)),
    )


def _messages(leave_host: bool, count: float, nbytes: float, sharing: float) -> Work:
    if leave_host:
        return Work(network_messages=count, network_bytes=nbytes * sharing)
    return Work(host_messages=count, host_bytes=nbytes)
