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
