"""Row and column groups of a worker's devices on TensorFlow's collectives."""

from collections.abc import Sequence

import tensorflow as tf

from keras_fastnet.collectives.grid import Grid, rows_of_ranks
from keras_fastnet.collectives.tensorflow_group import TensorFlowGroup


class TensorFlowTransport:
    """The groups that this worker's devices belong to.

    Making it is itself collective: all workers must.

    Args:
        grid: The grid of all ranks.
        hosts: Each rank's host, by rank.
        devices: This worker's devices.
        first_rank: The rank of the first of them; the others follow.
        nccl: Whether NCCL connects the ranks.
        timeout_seconds: How long a collective waits for the others; 0.0 without
            limit.

    Attributes:
        everyone: A group of all ranks for each of this worker's devices.
        rows: Its group of the ranks in its row.
        columns: Its group of the ranks in its column.
        places: The ranks in every row of the grid, by column.
    """

    def __init__(
        self,
        grid: Grid,
        hosts: Sequence[str],
        devices: Sequence[str],
        first_rank: int,
        *,
        nccl: bool = False,
        timeout_seconds: float = 0.0,
    ):
        def groups(names: Sequence[str], size: int) -> list[TensorFlowGroup]:
            return [
                TensorFlowGroup(
                    name, size, device, nccl=nccl, timeout_seconds=timeout_seconds
                )
                for name, device in zip(names, devices, strict=True)
            ]

        layout = rows_of_ranks(grid, hosts)
        ranks = range(first_rank, first_rank + len(devices))
        own_rows = [
            next(i for i, row in enumerate(layout) if rank in row) for rank in ranks
        ]
        self.everyone = groups([f"all of {grid}"] * len(devices), grid.size)
        self.rows = groups([f"row {i} of {layout}" for i in own_rows], grid.columns)
        # TensorFlow decides about the order of a group's ranks, so a column is of
        # those to whom it deals out the same chunk.
        orders = _gather_all(self.rows, ranks)
        own_columns = [
            order.index(rank) for order, rank in zip(orders, ranks, strict=True)
        ]
        self.columns = groups(
            [f"column {i} of {layout}" for i in own_columns], grid.rows
        )
        cells = [
            (row * grid.columns + column) * grid.size + rank
            for row, column, rank in zip(own_rows, own_columns, ranks, strict=True)
        ]
        cells = sorted(_gather_all(self.everyone, cells)[0])
        self.places = [
            [cell % grid.size for cell in cells[start : start + grid.columns]]
            for start in range(0, grid.size, grid.columns)
        ]


def _gather_all(
    groups: Sequence[TensorFlowGroup], values: Sequence[int]
) -> list[list[int]]:
    """Returns the values of all ranks of each group, given this worker's."""

    @tf.function
    def gather():
        return [
            group.all_gather(tf.constant([value], tf.int32))
            for group, value in zip(groups, values, strict=True)
        ]

    return [gathered.numpy().tolist() for gathered in gather()]
