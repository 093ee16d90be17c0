"""Memory that is used again, but not while somebody has it."""

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
def test_vectors_are_nobody_elses(wishes):
    memory, held = VectorPool(), []
    for number, (length, dtype, kept) in enumerate(wishes):
        vector = memory.vector(length, dtype)
        assert (vector.shape, vector.dtype) == ((length,), dtype)
        assert length == 0 or vector.ctypes.data % 64 == 0
        vector[:] = number
        if kept:
            held.append((number, vector))
    for number, vector in held:
        assert np.all(vector == vector.dtype.type(number))


def test_it_is_used_again():
    memory = VectorPool()
    places = {memory.vector(100_000, np.dtype("float32")).ctypes.data for _ in range(5)}
    assert len(places) == 1
    first = memory.vector(100_000, np.dtype("float32"))
    second = memory.vector(100_000, np.dtype("float32"))
    assert not np.shares_memory(first, second)


def test_odd_sizes_do_not_pile_up():
    memory = VectorPool()
    places = {
        memory.vector(length, np.dtype("float32")).ctypes.data
        for length in range(1000, 2000)
    }
    assert len(places) <= 20
