"""`VectorPool` reuses the memory of freed vectors only."""

import hypothesis
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from keras_fastnet.collectives.mpi_transport import VectorPool

DTYPES = [np.dtype(name) for name in ("float32", "int64", "float16")]


@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(0, 3000),
            st.sampled_from([*DTYPES, np.dtype(ml_dtypes.bfloat16)]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_live_vectors_never_share_memory(requests):
    pool, held = VectorPool(), []
    for number, (length, dtype, kept) in enumerate(requests):
        vector = pool.vector(length, dtype)
        assert (vector.shape, vector.dtype) == ((length,), dtype)
        assert length == 0 or vector.ctypes.data % 64 == 0
        vector[:] = number
        if kept:
            held.append((number, vector))
    for number, vector in held:
        assert np.all(vector == vector.dtype.type(number))


def test_freed_memory_is_reused():
    pool = VectorPool()
    places = {pool.vector(100_000, np.dtype("float32")).ctypes.data for _ in range(5)}
    assert len(places) == 1
    first = pool.vector(100_000, np.dtype("float32"))
    second = pool.vector(100_000, np.dtype("float32"))
    assert not np.shares_memory(first, second)


def test_number_of_buffers_is_bounded():
    pool = VectorPool()
    places = {
        pool.vector(length, np.dtype("float32")).ctypes.data
        for length in range(1000, 2000)
    }
    assert len(places) <= 20
