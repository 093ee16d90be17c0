"""Row and column groups of a worker's devices on TensorFlow collectives."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid, rows_of_ranks
from keras_fastnet.collectives.grid_sums import GridSums
from keras_fastnet.collectives.tensorflow_group import TensorFlowGroup


class TensorFlowTransport:
    """The groups that this worker's devices belong to.

    All workers must create it together.

    Args:
        grid: The grid of all ranks.
        hosts: Each rank's host, by rank.
        devices: This worker's devices.
        first_rank: The rank of the first device; the others follow.
        nccl: Whether NCCL connects the ranks. Defaults to `False`.
        timeout_seconds: Seconds that a collective waits for the other ranks; 0.0 for no
            limit. Defaults to `0.0`.
        watch: Called with a clock of each group, which returns for how many seconds it
            has waited. Defaults to nothing.

    Attributes:
        ranks_by_row: The ranks in every row of the grid, by column.
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
        watch: Callable[[Callable[[], float]], None] = lambda clock: None,
    ):
        def groups(names: Sequence[str], size: int) -> list[TensorFlowGroup]:
            made = [
                TensorFlowGroup(
                    name, size, device, nccl=nccl, timeout_seconds=timeout_seconds
                )
                for name, device in zip(names, devices, strict=True)
            ]
            for group in made:
                watch(group.mark.waited)
            return made

        layout = rows_of_ranks(grid, hosts)
        ranks = range(first_rank, first_rank + len(devices))
        own_rows = [
            next(i for i, row in enumerate(layout) if rank in row) for rank in ranks
        ]
        self._everyone = groups([f"all of {grid}"] * len(devices), grid.size)
        self._rows = groups([f"row {i} of {layout}" for i in own_rows], grid.columns)
        # TensorFlow decides the order of a group's ranks, so a column consists of the
        # ranks that it gives the same chunk.
        orders = _gather_all(self._rows, ranks)
        own_columns = [
            order.index(rank) for order, rank in zip(orders, ranks, strict=True)
        ]
        self._columns = groups(
            [f"column {i} of {layout}" for i in own_columns], grid.rows
        )
        cells = [
            (row * grid.columns + column) * grid.size + rank
            for row, column, rank in zip(own_rows, own_columns, ranks, strict=True)
        ]
        cells = sorted(_gather_all(self._everyone, cells)[0])
        self.ranks_by_row = [
            [cell % grid.size for cell in cells[start : start + grid.columns]]
            for start in range(0, grid.size, grid.columns)
        ]

    def sums(
        self, algorithm_for: Callable[[int], Algorithm]
    ) -> list["TensorFlowBucketSums"]:
        """Returns the all-reduce of each device; see `Transport.sums`."""
        return [
            TensorFlowBucketSums(GridSums(*groups, algorithm_for))
            for groups in zip(self._rows, self._columns, self._everyone, strict=True)
        ]


class TensorFlowBucketSums:
    """Packs the pieces of a bucket and sums them with TensorFlow's collectives.

    Args:
        grid_sums: The collectives of one device.
    """

    # A collective sends a whole vector, so only several vectors can overlap.
    cuts_tensors = True

    def __init__(self, grid_sums: GridSums):
        self._grid_sums = grid_sums

    def sum(
        self, tensors: Sequence[tf.Tensor], buckets: Sequence[Bucket]
    ) -> list[tf.Tensor]:
        """Sums buckets; see `BucketSums.sum`."""
        vectors = [_pack(tensors, bucket, self._grid_sums.ranks) for bucket in buckets]
        algorithms = [self._grid_sums.algorithm_for(_bytes_of(v)) for v in vectors]
        # Together, so that the column phase of one overlaps the row phase of the next.
        on_torus = iter(
            self._grid_sums.sum(
                [v for v, a in zip(vectors, algorithms, strict=True) if a == "torus"],
                "torus",
            )
        )
        return [
            next(on_torus)
            if algorithm == "torus"
            else self._grid_sums.sum([vector], algorithm)[0]
            for vector, algorithm in zip(vectors, algorithms, strict=True)
        ]


def _bytes_of(vector: tf.Tensor) -> int | None:
    elements = vector.shape.num_elements()
    return None if elements is None else elements * vector.dtype.size


def _pack(tensors: Sequence[tf.Tensor], bucket: Bucket, multiple: int) -> tf.Tensor:
    """Packs pieces of tensors into a vector of a length that `multiple` divides."""
    parts: list[tf.Tensor] = []
    length: int | tf.Tensor = 0
    for piece in bucket:
        _append_zeros(parts, piece.offset - length, tensors[0].dtype)
        part = piece.of(tensors)
        parts.append(part)
        static = part.shape[0]
        length = piece.offset + (tf.size(part) if static is None else static)
    _append_zeros(parts, -length % multiple, tensors[0].dtype)
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def _append_zeros(
    parts: list[tf.Tensor], missing: int | tf.Tensor, dtype: tf.DType
) -> None:
    if not isinstance(missing, int) or missing > 0:
        parts.append(tf.zeros([missing], dtype))


def _gather_all(
    groups: Sequence[TensorFlowGroup], values: Sequence[int]
) -> list[list[int]]:
    """Returns the values of all ranks of each group, given this worker's values."""

    @tf.function
    def gather():
        return [
            group.gather(tf.constant([value], tf.int32))
            for group, value in zip(groups, values, strict=True)
        ]

    return [gathered.numpy().tolist() for gathered in gather()]
