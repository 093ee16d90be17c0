"""The memory of what MPI sends: segments of buckets, and vectors from a pool."""

import hypothesis
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from keras_fastnet.collectives.mpi_transport import VectorPool, segments

DTYPES = [np.dtype(name) for name in ("float32", "int64", ml_dtypes.bfloat16)]


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from(DTYPES), st.booleans()),
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
    dtype = np.dtype("float32")
    places = {pool.vector(n, dtype).ctypes.data for n in range(1000, 2000)}
    assert len(places) <= 20


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    gaps_and_sizes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=8
    ),
    ranks=st.integers(1, 5),
    factor=st.integers(1, 12),
)
def test_segments_hold_the_bucket(gaps_and_sizes, ranks, factor):
    parts, offsets, end = [], [], 0
    for gap, size in gaps_and_sizes:
        offsets.append(end + gap if parts else 0)
        parts.append(np.arange(size) + 1000 * len(parts) + 1)
        end = offsets[-1] + size
    bucket = np.zeros(end + -end % ranks, int)
    for offset, part in zip(offsets, parts, strict=True):
        bucket[offset : offset + len(part)] = part
    before = [part.copy() for part in parts]

    total = np.full(len(bucket), -1)
    found = list(segments(parts, offsets, total, factor * ranks))
    np.testing.assert_array_equal(np.concatenate([s.values for s in found]), bucket)
    for segment in found:
        assert len(segment.values) % ranks == 0
        # Their rooms are the total, in order.
        segment.room[:] = segment.values
    np.testing.assert_array_equal(total, bucket)
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, old)
