"""A group of ranks on MPI."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_HALVES = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))
# How often somebody who waits looks whether the others are still there.
_LOOK_SECONDS = 0.5


class Vector(NamedTuple):
    """What a rank brings to a sum, and where the sum goes.

    Attributes:
        values: What it brings. It is only read, so it may be somebody else's memory.
        room: As many elements, perhaps the same memory.
    """

    values: np.ndarray
    room: np.ndarray

    @classmethod
    def in_place(cls, array: np.ndarray) -> "Vector":
        """Returns a vector whose sum takes its place.

        Args:
            array: The values.
        """
        return cls(array, array)


class MpiGroup:
    """A `Group` of `Vector`s on an MPI communicator.

    MPI only moves bytes. The additions are done here, each chunk in one place and in
    the order of the ranks: so results are bit-equal on all of them, which MPI does not
    promise, and `float16` and `bfloat16`, for which it has no sums, are added in
    `float32` and rounded once.

    Args:
        communicator: An `mpi4py.MPI.Comm` that nobody else uses.
        look_around: Called now and then by somebody who waits; raises where it is in
            vain.
    """

    def __init__(self, communicator: Any, look_around: Callable[[], None]):
        # Here, since only who uses it needs mpi4py.
        from mpi4py import MPI

        self.size = communicator.size
        self._in_place = MPI.IN_PLACE
        self._place = communicator.rank
        self._communicator = communicator
        self._look_around = look_around
        # One sum may begin before the last has been done with.
        self._scratch = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def reduce_scatter(self, vector: Vector) -> Vector:
        """Sums vectors and deals out the sum; see `Group.reduce_scatter`."""
        return vector if self.size == 1 else self._start_scatter(vector)()

    def all_gather(self, chunk: Vector, vector: Vector) -> Vector:
        """Joins the chunks of all ranks, where they lie; see `Group.all_gather`."""
        if self.size == 1:
            return vector
        room = _bytes_of(vector.room)
        self._wait(self._communicator.Iallgather(self._in_place, room))
        return Vector.in_place(vector.room)

    def start_all_reduce(self, vector: Vector) -> Callable[[], Vector]:
        """Begins to sum vectors; see `Group.start_all_reduce`."""
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
            row: This rank's.
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
            chunk = vector.room.reshape(self.size, -1)[self._place]
            _sum(parts.reshape(self.size, -1), chunk)
            return Vector.in_place(chunk)

        return scattered

    def _received(self, nbytes: int, dtype: np.dtype) -> np.ndarray:
        """Returns room for what the others send."""
        self._scratch.reverse()
        if self._scratch[0].nbytes < nbytes:
            self._scratch[0] = np.empty(nbytes, np.uint8)
        return self._scratch[0][:nbytes].view(dtype)

    def _wait(self, request: Any) -> None:
        """Waits, and lets whoever computes on this core go on."""
        look_at = time.monotonic() + _LOOK_SECONDS
        while not request.Test():
            os.sched_yield()
            if time.monotonic() > look_at:
                self._look_around()
                look_at = time.monotonic() + _LOOK_SECONDS


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
    # MPI has no bfloat16, and its sums are not used.
    return array.view(np.uint8)
