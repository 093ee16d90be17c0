"""How a bucket is cut into the vectors that MPI sends."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from keras_fastnet.collectives.mpi_transport import shares


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    gaps_and_sizes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=8
    ),
    ranks=st.integers(1, 5),
    factor=st.integers(1, 12),
)
def test_shares_hold_the_bucket(gaps_and_sizes, ranks, factor):
    parts, places, end = [], [], 0
    for gap, size in gaps_and_sizes:
        places.append(end + gap if parts else 0)
        parts.append(np.arange(size) + 1000 * len(parts) + 1)
        end = places[-1] + size
    bucket = np.zeros(end + -end % ranks, int)
    for place, part in zip(places, parts, strict=True):
        bucket[place : place + len(part)] = part
    before = [part.copy() for part in parts]

    total = np.full(len(bucket), -1)
    found = list(shares(parts, places, total, factor * ranks))
    np.testing.assert_array_equal(np.concatenate([s.values for s in found]), bucket)
    for share in found:
        assert len(share.values) % ranks == 0
        # The room of all of them is the total, in order.
        share.room[:] = share.values
    np.testing.assert_array_equal(total, bucket)
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, old)
