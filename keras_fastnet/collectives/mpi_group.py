"""A group of ranks on an MPI communicator."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_HALVES = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))
# Interval at which a waiting rank checks that its peers are alive.
_CHECK_SECONDS = 0.5


class Vector(NamedTuple):
    """A rank's values for a sum, and the memory for the sum.

    Attributes:
        values: The rank's values. They are only read, so they may lie in memory that
            belongs to others.
        room: Memory for as many elements; may be that of `values`.
    """

    values: np.ndarray
    room: np.ndarray

    @classmethod
    def in_place(cls, array: np.ndarray) -> "Vector":
        """Returns a vector whose sum overwrites its values.

        Args:
            array: The values.
        """
        return cls(array, array)


class MpiGroup:
    """A `Group` of `Vector`s on an MPI communicator.

    MPI only moves bytes; the additions are done here, each chunk on one rank and in the
    order of the ranks. Results are therefore bit-equal on all ranks, which MPI does not
    guarantee, and `float16` and `bfloat16`, which MPI cannot sum, are added in
    `float32` and rounded once.

    Args:
        communicator: An `mpi4py.MPI.Comm` that nothing else uses.
        check_peers: Called with the seconds that this rank has waited, every half a
            second; raises if a peer has exited or is late.
    """

    def __init__(self, communicator: Any, check_peers: Callable[[float], None]):
        # Imported here, since only MPI clusters need mpi4py.
        from mpi4py import MPI

        self.size = communicator.size
        self._in_place = MPI.IN_PLACE
        self._rank = communicator.rank
        self._communicator = communicator
        self._check_peers = check_peers
        # Two buffers, since a sum may start before the last one ends.
        self._scratch = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def reduce_scatter(self, vector: Vector) -> Vector:
        """Sums vectors and scatters the sum; see `Group.reduce_scatter`."""
        return vector if self.size == 1 else self._start_scatter(vector)()

    def all_gather(self, chunk: Vector, vector: Vector) -> Vector:
        """Gathers the chunks of all ranks in place; see `Group.all_gather`."""
        if self.size == 1:
            return vector
        room = _bytes_of(vector.room)
        self._wait(self._communicator.Iallgather(self._in_place, room))
        return Vector.in_place(vector.room)

    def start_all_reduce(self, vector: Vector) -> Callable[[], Vector]:
        """Starts an all-reduce; see `Group.start_all_reduce`."""
        if self.size == 1:
            return lambda: vector
        scattered = self._start_scatter(vector)
        return lambda: self.all_gather(scattered(), vector)

    def gather_and_sum(self, vector: Vector) -> Vector:
        """Sums vectors, with few messages; see `Group.gather_and_sum`."""
        if self.size == 1:
            return vector
        values = vector.values
        parts = self._received(self.size * values.nbytes, values.dtype)
        self._wait(self._communicator.Iallgather(_bytes_of(values), _bytes_of(parts)))
        _sum(parts.reshape(self.size, -1), vector.room)
        return Vector.in_place(vector.room)

    def gather(self, row: np.ndarray) -> np.ndarray:
        """Returns the vectors of all ranks as rows, in the order of the group.

        Args:
            row: This rank's vector.
        """
        rows = np.empty((self.size, row.size), row.dtype)
        self._wait(self._communicator.Iallgather(_bytes_of(row), _bytes_of(rows)))
        return rows

    def _start_scatter(self, vector: Vector) -> Callable[[], Vector]:
        values = vector.values
        parts = self._received(values.nbytes, values.dtype)
        request = self._communicator.Ialltoall(_bytes_of(values), _bytes_of(parts))

        def scattered() -> Vector:
            self._wait(request)
            chunk = vector.room.reshape(self.size, -1)[self._rank]
            _sum(parts.reshape(self.size, -1), chunk)
            return Vector.in_place(chunk)

        return scattered

    def _received(self, nbytes: int, dtype: np.dtype) -> np.ndarray:
        """Returns a buffer for the messages of the other ranks."""
        self._scratch.reverse()
        if self._scratch[0].nbytes < nbytes:
            self._scratch[0] = np.empty(nbytes, np.uint8)
        return self._scratch[0][:nbytes].view(dtype)

    def _wait(self, request: Any) -> None:
        """Waits, and yields the core to ranks that are still computing."""
        begun = time.monotonic()
        check_at = begun + _CHECK_SECONDS
        while not request.Test():
            os.sched_yield()
            if time.monotonic() > check_at:
                self._check_peers(time.monotonic() - begun)
                check_at = time.monotonic() + _CHECK_SECONDS


def _sum(parts: np.ndarray, total: np.ndarray) -> None:
    """Adds rows in their order.

    Args:
        parts: The rows.
        total: Receives the sum.
    """
    if parts.dtype not in _HALVES:
        np.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            np.add(total, part, out=total)
        return
    wide = parts[0].astype(np.float32)
    for part in parts[1:]:
        np.add(wide, part, out=wide, casting="unsafe")
    total[:] = wide


def _bytes_of(array: np.ndarray) -> np.ndarray:
    # As bytes: MPI has no bfloat16, and its sums are not used.
    return array.view(np.uint8)
