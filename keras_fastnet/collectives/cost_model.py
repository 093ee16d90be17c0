"""What an all-reduce costs: messages, bytes and copies, and what they take in time.

The model is linear. An algorithm on a grid has an amount of `Work`; a machine has
`Prices`; the predicted time is their product. So the same lines serve to choose an
algorithm, to plan a cluster and, solved for the prices, to learn them from
measurements.

It is the usual model of start-up times and bandwidth (Thakur, Rabenseifner and Gropp
2005, section 3), with the start-up divided into waiting and sending, as messages of an
exchange travel together, and one more term for copies in memory.
"""

import dataclasses
import math
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
        host_rounds: Times that it waits for messages of ranks on the same host.
        host_messages: Messages to them; those of one round travel together.
        host_bytes: Their bytes.
        network_rounds: Times that it waits for messages of other hosts.
        network_messages: Messages to them.
        network_bytes: Their bytes, times the ranks that share a network card.
        copied_bytes: Bytes read or written in local sums and copies, beyond those
            of a ring.
    """

    host_rounds: float = 0.0
    host_messages: float = 0.0
    host_bytes: float = 0.0
    network_rounds: float = 0.0
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
        host_round: For waiting until a message within a host has come.
        host_message: For sending and receiving one, however short.
        host_byte: For each byte of it.
        network_round: For waiting until a message of another host has come.
        network_message: For sending and receiving one, however short.
        network_byte: For each byte of it, on a network card of one's own.
        copied_byte: For each byte read or written in memory.
    """

    host_round: float
    host_message: float
    host_byte: float
    network_round: float
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
        # In every round one rank of each host sends to the next host, and the
        # others wait for it: no network card is shared.
        return _ring(topology.hosts > 1, 2 * (ranks - 1), nbytes / ranks)
    row_leaves_host = topology.ranks_per_host % columns > 0
    column_leaves_host = topology.hosts > 1
    sharing = max(1.0, topology.ranks_per_host / topology.cards)
    if algorithm == "torus":
        chunk = nbytes / columns
        # Like the ring over all ranks, a column leaves each host once.
        crossing = min(columns, topology.ranks_per_host)
        column_sharing = max(1.0, crossing / topology.cards)
        return (
            _exchange(row_leaves_host, columns - 1, chunk, sharing)
            + _ring(column_leaves_host, 2 * (rows - 1), chunk / rows, column_sharing)
            + _ring(row_leaves_host, columns - 1, chunk, sharing)
            # The exchange's result is written and read by the sum; the gathered
            # chunks are written once more.
            + Work(copied_bytes=3 * nbytes if columns > 1 else 0)
        )
    return (
        _exchange(row_leaves_host, columns - 1, nbytes, sharing)
        + _exchange(column_leaves_host, rows - 1, nbytes, sharing)
        # Copies to send, copies received, and their sum.
        + Work(copied_bytes=3 * nbytes * (columns * (columns > 1) + rows * (rows > 1)))
    )


def all_reduce_seconds(
    algorithm: Algorithm,
    grid: Grid,
    topology: Topology,
    prices: Prices,
    nbytes: float,
    cores_per_host: int | None = None,
) -> float:
    """Returns the predicted time of an all-reduce.

    Args:
        algorithm: The algorithm.
        grid: The grid.
        topology: The ranks' hosts.
        prices: The machine's prices.
        nbytes: Bytes of each rank's vector.
        cores_per_host: Processor cores of each host. None for enough of them.
    """
    alone = prices.seconds(work_of(algorithm, grid, topology, nbytes))
    return alone * oversubscription(topology, cores_per_host)


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


def cheapest_grid(topology: Topology, prices: Prices, *sizes: float) -> Grid:
    """Returns the grid for a cluster.

    Ranks on one host form a row, so that only the sums of a host cross the network.
    Where there is one rank per host, or one host, it is the grid with the lowest
    geometric mean of the times, each by the cheapest algorithm.

    Args:
        topology: The ranks' hosts.
        prices: The machine's prices.
        *sizes: Bytes of the vectors to sum.
    """
    if topology.hosts > 1 and topology.ranks_per_host > 1:
        return Grid(topology.hosts, topology.ranks_per_host)
    if topology.ranks == 1:
        return Grid(1, 1)  # Nothing is sent; there is no logarithm of its time.

    def mean_of_logarithms(grid: Grid) -> float:
        return sum(
            math.log(
                prices.seconds(
                    work_of(
                        cheapest_algorithm(grid, topology, prices, nbytes),
                        grid,
                        topology,
                        nbytes,
                    )
                )
            )
            for nbytes in sizes
        )

    return min(grids_of(topology.ranks), key=mean_of_logarithms)


def _ring(leave_host: bool, rounds: int, nbytes: float, sharing: float = 1.0) -> Work:
    """Messages one after the other, each of `nbytes`."""
    return _messages(leave_host, rounds, rounds, nbytes, sharing)


def _exchange(leave_host: bool, messages: int, nbytes: float, sharing: float) -> Work:
    """Messages all at once, each of `nbytes`."""
    return _messages(leave_host, min(messages, 1), messages, nbytes, sharing)


def _messages(
    leave_host: bool, rounds: int, messages: int, nbytes: float, sharing: float
) -> Work:
    if leave_host:
        return Work(
            network_rounds=rounds,
            network_messages=messages,
            network_bytes=messages * nbytes * sharing,
        )
    return Work(
        host_rounds=rounds, host_messages=messages, host_bytes=messages * nbytes
    )
