"""Row and column groups of a worker on MPI's Cartesian communicators."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid, rows_of_ranks
from keras_fastnet.collectives.grid_sums import GridSums
from keras_fastnet.collectives.mpi_group import MpiGroup
from keras_fastnet.collectives.reused_memory import ReusedMemory

# Long vectors go in parts: while one is in its column, the next is in its row, and a
# part stays in the processor's cache. Chosen by `benchmarks/all_reduce`.
_PART_BYTES = 4 * 2**20


class MpiTransport:
    """The groups that this rank belongs to. Making it is itself collective.

    Args:
        grid: The grid of all ranks.
        hosts: Each rank's host, by rank.
        communicator: An `mpi4py.MPI.Comm` of all ranks.
        look_around: Called now and then by somebody who waits; raises where it is in
            vain.

    Attributes:
        name: What people call it.
        places: The ranks in every row of the grid, by column.
    """

    def __init__(
        self,
        grid: Grid,
        hosts: Sequence[str],
        communicator: Any,
        look_around: Callable[[], None],
    ):
        self.name = "MPI"
        self.places = rows_of_ranks(grid, hosts)
        order = [rank for row in self.places for rank in row]
        placed = communicator.Split(0, key=order.index(communicator.rank))
        cartesian = placed.Create_cart([grid.rows, grid.columns])
        self._groups = [
            MpiGroup(part, look_around)
            for part in (
                cartesian.Sub([False, True]),
                cartesian.Sub([True, False]),
                placed,
            )
        ]
        self._order = order

    def sums(self, algorithm_for: Callable[[int], Algorithm]) -> list["MpiBucketSums"]:
        """Returns what sums over all ranks; see `Transport.sums`."""
        row, column, everyone = self._groups
        grid_sums = GridSums(row, column, everyone, algorithm_for)
        return [MpiBucketSums(grid_sums, everyone, self._order)]


class MpiBucketSums:
    """Packs buckets into memory that MPI and the additions work in.

    A bucket is copied once, into the vector that MPI sends from and receives into, and
    that TensorFlow then takes as it is.

    MPI ends up in a deadlock where ranks sum in different orders. So the buckets of a
    rank follow each other as the program has them, and before each the ranks compare
    what they are about to sum.

    Args:
        grid_sums: The collectives.
        everyone: All ranks.
        ranks: Their numbers, by place in `everyone`.
    """

    def __init__(self, grid_sums: GridSums, everyone: MpiGroup, ranks: Sequence[int]):
        self._grid_sums = grid_sums
        self._everyone = everyone
        self._ranks = ranks
        self._memory = ReusedMemory()
        with tf.init_scope(), tf.device("CPU:0"):
            # TensorFlow orders operations that share a resource.
            self._done = tf.Variable(0, dtype=tf.int64, trainable=False)

    def sum(
        self, tensors: Sequence[tf.Tensor], buckets: Sequence[Bucket]
    ) -> list[tf.Tensor]:
        """Sums buckets; see `BucketSums.sum`."""
        return [self._sum_bucket(tensors, bucket) for bucket in buckets]

    def _sum_bucket(self, tensors: Sequence[tf.Tensor], bucket: Bucket) -> tf.Tensor:
        places = [piece.place for piece in bucket]
        parts = [piece.of(tensors) for piece in bucket]
        with tf.device("CPU:0"):
            total = tf.numpy_function(
                functools.partial(self._sum_parts, places),
                [self._done.read_value(), *parts],
                tensors[0].dtype,
            )
            with tf.control_dependencies([total]):
                self._done.assign_add(1)
        total.set_shape([None])
        return total

    def _sum_parts(
        self, places: Sequence[int], done: np.ndarray, *parts: np.ndarray
    ) -> np.ndarray:
        vector = self._packed(parts, places)
        kind = f"{vector.dtype} {[part.size for part in parts]}"
        self._compare([int(done), vector.nbytes, zlib.crc32(kind.encode())])
        algorithm = self._grid_sums.algorithm_for(vector.nbytes)
        length = max(1, _PART_BYTES // vector.itemsize // self._grid_sums.ranks)
        length *= self._grid_sums.ranks
        shares = [
            vector[start : start + length] for start in range(0, len(vector), length)
        ]
        # Infinities are for the optimizer to deal with.
        with np.errstate(all="ignore"):
            self._grid_sums.sum(shares, [algorithm] * len(shares))
        return vector

    def _compare(self, facts: list[int]) -> None:
        found = self._everyone.gather(np.array(facts, np.int64))
        if np.all(found == found[0]):
            return
        told = "; ".join(
            f"rank {rank}: sum {done + 1} of {nbytes:,} bytes"
            for rank, (done, nbytes, _) in zip(self._ranks, found, strict=True)
        )
        raise RuntimeError(
            "All ranks must sum the same tensors in the same order. Received: "
            f"{told}. Look for what depends on the rank in the model, the data or the "
            "callbacks."
        )

    def _packed(self, parts: Sequence[np.ndarray], places: Sequence[int]) -> np.ndarray:
        """Copies parts to their places in a vector that all ranks can divide."""
        length = places[-1] + parts[-1].size
        length += -length % self._grid_sums.ranks
        vector = self._memory.vector(length, parts[0].dtype)
        end = 0
        for place, part in zip(places, parts, strict=True):
            vector[end:place] = 0
            end = place + part.size
            vector[place:end] = part
        vector[end:] = 0
        return vector
