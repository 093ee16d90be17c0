"""Row and column groups of a worker on MPI Cartesian communicators."""

import functools
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid, rows_of_ranks
from keras_fastnet.collectives.grid_sums import GridSums
from keras_fastnet.collectives.mpi_group import MpiGroup, Vector

# Buckets go in shares: while one is in its column, the next is in its row, and a share
# stays in the processor's cache. Chosen by `benchmarks/all_reduce`.
_SHARE_BYTES = 2 * 2**20


class MpiTransport:
    """The groups that this rank belongs to. Making it is itself collective.

    Args:
        grid: The grid of all ranks.
        hosts: Each rank's host, by rank.
        communicator: An `mpi4py.MPI.Comm` of all ranks.
        look_around: Called now and then by somebody who waits; raises where it is in
            vain.

    Attributes:
        places: The ranks in every row of the grid, by column.
    """

    def __init__(
        self,
        grid: Grid,
        hosts: Sequence[str],
        communicator: Any,
        look_around: Callable[[], None],
    ):
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
    """Sums buckets with as few copies as can be.

    MPI sends large tensors from where they are, and small ones packed. It receives into
    memory that TensorFlow then takes as it is.

    MPI ends up in a deadlock where ranks sum in different orders. So the buckets of a
    rank follow each other as the program has them, and before each the ranks compare
    what they are about to sum.

    Args:
        grid_sums: The collectives.
        everyone: All ranks.
        ranks: Their numbers, by place in `everyone`.
    """

    # Buckets are cut into shares here, and joining tensors again would be a copy.
    cuts_tensors = False

    def __init__(self, grid_sums: GridSums, everyone: MpiGroup, ranks: Sequence[int]):
        self._grid_sums = grid_sums
        self._everyone = everyone
        self._ranks = ranks
        self._memory = VectorPool()
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
                functools.partial(self.sum_arrays, places),
                [self._done.read_value(), *parts],
                tensors[0].dtype,
            )
            with tf.control_dependencies([total]):
                self._done.assign_add(1)
        total.set_shape([None])
        return total

    def sum_arrays(
        self, places: Sequence[int], done: int | np.ndarray, *parts: np.ndarray
    ) -> np.ndarray:
        """Sums one bucket. All ranks must call it.

        Args:
            places: Where each part begins in the bucket.
            done: How many sums there were before.
            *parts: What is in the bucket, vectors of one dtype.

        Returns:
            The sum of the bucket, with padding at its end.

        Raises:
            RuntimeError: The ranks are about to sum different things.
        """
        ranks = self._grid_sums.ranks
        length = places[-1] + parts[-1].size
        total = self._memory.vector(length + -length % ranks, parts[0].dtype)
        kind = f"{total.dtype} {[part.size for part in parts]}"
        self._compare([int(done), total.nbytes, zlib.crc32(kind.encode())])
        share = max(1, _SHARE_BYTES // total.itemsize // ranks) * ranks
        # Infinities are for the optimizer to deal with.
        with np.errstate(all="ignore"):
            self._grid_sums.sum(
                shares(parts, places, total, share),
                self._grid_sums.algorithm_for(total.nbytes),
            )
        return total

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


def shares(
    parts: Sequence[np.ndarray], places: Sequence[int], total: np.ndarray, length: int
) -> Iterator[Vector]:
    """Cuts a bucket into vectors.

    Args:
        parts: What is in the bucket.
        places: Where each part begins there.
        total: Room for its sum.
        length: Elements of a vector.
    """
    first = 0
    for start in range(0, len(total), length):
        room = total[start : start + length]
        stop = start + len(room)
        while first + 1 < len(parts) and places[first + 1] <= start:
            first += 1
        offset = start - places[first]
        if offset + len(room) <= parts[first].size:
            yield Vector(parts[first][offset : offset + len(room)], room)
            continue
        # Of several parts: copied together, with zeros between them.
        end = start
        for place, part in zip(places[first:], parts[first:], strict=True):
            if place >= stop:
                break
            begin = max(place, start)
            room[end - start : max(begin, end) - start] = 0
            end = min(place + part.size, stop)
            if end > begin:
                room[begin - start : end - start] = part[begin - place : end - place]
            end = max(end, begin)
        room[end - start :] = 0
        yield Vector.in_place(room)


# What TensorFlow takes over without a copy.
_ALIGNMENT = 64


class VectorPool:
    """Makes vectors, of memory that earlier ones have left.

    The C library may return a freed vector to the system, which then clears every page
    of the next: with some hundred megabytes a step that takes as long as MPI. Here a
    vector's memory is kept when nobody refers to the vector any more, which for
    TensorFlow is when it has let go of the tensor.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}

    def vector(self, length: int, dtype: np.dtype) -> np.ndarray:
        """Returns a vector with any values.

        Its memory is used again when the vector itself is gone: views of it do not keep
        it.

        Args:
            length: Its elements.
            dtype: Their dtype.
        """
        nbytes = length * dtype.itemsize
        # Eight sizes for each power of two: others shall not pile up for ever.
        step = max(_ALIGNMENT, 1 << max(0, nbytes.bit_length() - 4))
        room = -(-nbytes // step) * step
        free = self._free.setdefault(room, [])
        memory = free.pop() if free else np.empty(room + _ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % _ALIGNMENT
        vector = memory[first : first + nbytes].view(dtype)
        weakref.finalize(vector, free.append, memory).atexit = False
        return vector
