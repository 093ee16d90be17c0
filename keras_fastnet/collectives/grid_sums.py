"""Sums of vectors over all ranks of a grid."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.transport import Group


def torus_sums(vectors: Iterable[Any], row: Group, column: Group) -> list[Any]:
    """Sums vectors over the grid, with two of them on the way at a time.

    While one vector is in its column phase, the next starts in its row: rows and
    columns are different links. The phases are issued in an order that is right for
    transports that run the operations of a group one by one.

    Args:
        vectors: This rank's, each of a length that the number of ranks divides.
        row: The ranks in this rank's row.
        column: The ranks in this rank's column.

    Returns:
        The sums.
    """
    sums: list[Any] = []
    before = None
    for vector in vectors:
        chunk = row.reduce_scatter(vector)
        if before is not None:
            sums.append(row.all_gather(before[0](), before[1]))
        before = column.start_all_reduce(chunk), vector
    if before is not None:
        sums.append(row.all_gather(before[0](), before[1]))
    return sums


def gathered_sum(vector: Any, row: Group, column: Group) -> Any:
    """Sums a short vector over the grid, in as few messages as can be.

    Args:
        vector: This rank's.
        row: The ranks in this rank's row.
        column: The ranks in this rank's column.

    Returns:
        The sum.
    """
    return column.gather_and_sum(row.gather_and_sum(vector))


class GridSums:
    """One rank's part in sums over all ranks, on any transport.

    Args:
        row: The ranks in this rank's row of the grid.
        column: The ranks in its column.
        everyone: All ranks.
        algorithm_for: Which algorithm to use for a vector of so many bytes; the same
            answers on all ranks.

    Attributes:
        ranks: Number of ranks, which divides the length of every vector.
    """

    def __init__(
        self,
        row: Group,
        column: Group,
        everyone: Group,
        algorithm_for: Callable[[int], Algorithm],
    ):
        self.ranks = row.size * column.size
        self._row = row
        self._column = column
        self._everyone = everyone
        self._algorithm_for = functools.cache(algorithm_for)

    def algorithm_for(self, nbytes: int | None) -> Algorithm:
        """Returns the algorithm for a vector.

        Args:
            nbytes: Its size; `None` where that is not known yet.
        """
        return "ring" if nbytes is None else self._algorithm_for(nbytes)

    def sum(self, vectors: Iterable[Any], algorithm: Algorithm) -> list[Any]:
        """Sums vectors by one algorithm.

        Args:
            vectors: This rank's. All ranks have as many, of the same length and
                dtype. Each is taken when the sum of those before it is under way.
            algorithm: The algorithm.

        Returns:
            The sums, bit-equal on all ranks.
        """
        if algorithm == "torus":
            return torus_sums(vectors, self._row, self._column)
        if algorithm == "ring":
            return self._flat_sums(vectors)
        return [gathered_sum(vector, self._row, self._column) for vector in vectors]

    def _flat_sums(self, vectors: Iterable[Any]) -> list[Any]:
        """Sums over all ranks at once, one vector begun before the last is done."""
        sums, last = [], None
        for vector in vectors:
            begun = self._everyone.start_all_reduce(vector)
            if last is not None:
                sums.append(last())
            last = begun
        return sums if last is None else [*sums, last()]
