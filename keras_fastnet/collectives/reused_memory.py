"""Memory for vectors that come and go at every step."""

import weakref

import numpy as np

# What TensorFlow takes over without a copy.
_ALIGNMENT = 64


class ReusedMemory:
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

        Args:
            length: Its elements.
            dtype: Their dtype.
        """
        nbytes = length * dtype.itemsize
        free = self._free.setdefault(nbytes, [])
        memory = free.pop() if free else np.empty(nbytes + _ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % _ALIGNMENT
        vector = memory[first : first + nbytes].view(dtype)
        weakref.finalize(vector, free.append, memory).atexit = False
        return vector
