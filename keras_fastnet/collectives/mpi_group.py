"""A group of ranks on MPI."""

import os
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

_HALVES = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))
# How often somebody who waits looks whether the others are still there.
_LOOK_SECONDS = 0.5


class MpiGroup:
    """A `Group` of NumPy vectors on an MPI communicator, summed in place.

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
        self.size = communicator.size
        self._place = communicator.rank
        self._communicator = communicator
        self._look_around = look_around
        # Allocated once: the system clears fresh pages, which takes as long as MPI.
        self._scratch = np.empty(0, np.uint8)

    def reduce_scatter(self, vector: np.ndarray) -> np.ndarray:
        """Sums vectors and deals out the sum; see `Group.reduce_scatter`."""
        if self.size == 1:
            return vector
        return self._start_scatter(vector)()

    def all_gather(self, chunk: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Joins the chunks of all ranks, in `vector`; see `Group.all_gather`."""
        if self.size > 1:
            in_place = _in_place()
            self._wait(self._communicator.Iallgather(in_place, _bytes_of(vector)))
        return vector

    def gather(self, row: np.ndarray) -> np.ndarray:
        """Returns the vectors of all ranks as rows, in the order of the group.

        Args:
            row: This rank's.
        """
        rows = np.empty((self.size, row.size), row.dtype)
        self._wait(self._communicator.Iallgather(_bytes_of(row), _bytes_of(rows)))
        return rows

    def start_all_reduce(self, vector: np.ndarray) -> Callable[[], np.ndarray]:
        """Begins to sum vectors; see `Group.start_all_reduce`."""
        if self.size == 1:
            return lambda: vector
        scattered = self._start_scatter(vector)
        return lambda: self.all_gather(scattered(), vector)

    def gather_and_sum(self, vector: np.ndarray) -> np.ndarray:
        """Sums vectors, with few messages; see `Group.gather_and_sum`."""
        if self.size == 1:
            return vector
        parts = self._received(self.size * vector.nbytes, vector.dtype)
        self._wait(self._communicator.Iallgather(_bytes_of(vector), _bytes_of(parts)))
        _sum(parts.reshape(self.size, -1), vector)
        return vector

    def _start_scatter(self, vector: np.ndarray) -> Callable[[], np.ndarray]:
        parts = self._received(vector.nbytes, vector.dtype)
        request = self._communicator.Ialltoall(_bytes_of(vector), _bytes_of(parts))

        def scattered() -> np.ndarray:
            self._wait(request)
            chunk = vector.reshape(self.size, -1)[self._place]
            _sum(parts.reshape(self.size, -1), chunk)
            return chunk

        return scattered

    def _received(self, nbytes: int, dtype: np.dtype) -> np.ndarray:
        """Returns room for what the others send."""
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch[:nbytes].view(dtype)

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


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE
