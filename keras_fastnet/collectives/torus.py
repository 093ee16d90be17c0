"""Sums over all ranks of a grid, composed of collectives over rows and columns.

The torus is that of Mikami et al. 2018 (arXiv 1811.05233), section 2.2: reduce-scatter
along the row, all-reduce along the column, all-gather along the row. Each vector's
chunk is summed in one place and copied from there, so that results are bit-equal on
all ranks.
"""

from collections.abc import Iterable
from typing import Any

from keras_fastnet.collectives.group import Group


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
