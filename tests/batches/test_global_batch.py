"""A replica's share of a global batch, without replicas."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.batches.fingerprints import fingerprint, tell_the_same
from keras_fastnet.batches.global_batch import (
    bounds,
    count_examples,
    dealt_evenly,
    fill_if_empty,
    take_share,
    with_examples,
)
from keras_fastnet.errors import ShardingError


@given(rows=st.integers(0, 10_000), replicas=st.integers(1, 300))
def test_shares_partition_the_batch_and_differ_by_one_at_most(rows, replicas):
    shares = [bounds(rows, position, replicas) for position in range(replicas)]
    assert shares[0][0] == 0
    assert shares[-1][1] == rows
    assert all(a[1] == b[0] for a, b in pairwise(shares))
    sizes = {stop - start for start, stop in shares}
    assert max(sizes) - min(sizes) <= 1


def joined(data, replicas):
    return [take_share(data, position, replicas) for position in range(replicas)]


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_every_kind_of_tensor_is_shared(in_graph):
    dense = tf.reshape(tf.range(14), (7, 2))
    data = {
        "dense": dense,
        "text": tf.constant(list("abcdefg")),
        "ragged": tf.RaggedTensor.from_row_lengths(tf.range(21), range(7)),
        "sparse": tf.sparse.from_dense(dense),
        "nothing": None,
    }

    def take():
        return joined(data, 3)

    if in_graph:
        # As a dataset does it: the number of rows is not known beforehand.
        unknown = tf.TensorSpec((None, 2), tf.int32)

        @tf.function(input_signature=[unknown])
        def take_dense(x):
            return [part["dense"] for part in joined({"dense": x}, 3)]

        parts = take_dense(dense)
        np.testing.assert_array_equal(tf.concat(parts, 0), dense)
        return
    parts = take()
    assert [len(part["dense"]) for part in parts] == [2, 2, 3]
    for name in ("dense", "text"):
        together = tf.concat([part[name] for part in parts], 0)
        np.testing.assert_array_equal(together, data[name])
    rows = [row for part in parts for row in part["ragged"].to_list()]
    assert rows == data["ragged"].to_list()
    sparse = tf.sparse.concat(0, [part["sparse"] for part in parts])
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), dense)
    assert all(part["nothing"] is None for part in parts)


def test_a_sparse_share_within_a_step_keeps_its_number_of_columns():
    # Layers are built from it.
    spec = tf.SparseTensorSpec((None, 3), tf.int32)

    @tf.function(input_signature=[spec])
    def share(x):
        own = with_examples((x,), 1, 2).data[0]
        assert own.shape.as_list() == [None, 3]
        return own

    own = share(tf.sparse.from_dense([[1, 0, 2], [0, 3, 0], [4, 0, 0], [0, 0, 5]]))
    np.testing.assert_array_equal(tf.sparse.to_dense(own), [[4, 0, 0], [0, 0, 5]])


def test_a_share_of_an_empty_range_has_a_filler():
    batches = [with_examples((tf.constant([[5.0], [6.0]]),), i, 3) for i in range(3)]
    assert [int(batch.own) for batch in batches] == [0, 1, 1]
    assert [int(batch.examples) for batch in batches] == [2, 2, 2]
    assert [batch.data[0].numpy().tolist() for batch in batches] == [
        [[5.0]],
        [[5.0]],
        [[6.0]],
    ]


def test_fill_if_empty():
    x, y = fill_if_empty((tf.zeros((0, 3)), tf.zeros((0,), tf.int64)))
    assert x.shape == (1, 3)
    assert y.numpy().tolist() == [0]
    full = tf.ones((2, 3))
    assert fill_if_empty(full) is full


def test_fingerprints_differ_by_order_and_dtype():
    x = np.arange(300.0).reshape(100, 3)
    batches = [x, x[::-1], x[:50], x.astype("float32"), (x, x), np.vstack([x, x])]
    prints = {
        tuple(fingerprint(tf.nest.map_structure(tf.constant, b)).numpy().tolist())
        for b in batches
    }
    assert len(prints) == len(batches)
    assert tuple(fingerprint(tf.constant(x)).numpy().tolist()) in prints


def test_fingerprints_read_more_than_one_feature():
    """Images without labels, black around their middle, in two orders."""
    images = np.zeros((64 * 8, 16, 16), "float32")
    images[:, 4:12, 4:12] = np.random.default_rng(0).normal(size=(512, 8, 8))
    one, other = (fingerprint(tf.constant(i)) for i in (images, images[::-1]))
    assert int(one[0]) != int(other[0])


def test_fingerprint_of_equal_examples_is_minus_one():
    positions = tf.tile(tf.range(5)[None], [4, 1])
    nothing = (tf.zeros((4, 0)), tf.ones(4), positions, None, tf.zeros((0, 3)))
    assert fingerprint(nothing).numpy().tolist() == [-1] * 5


def test_one_tensor_with_equal_hashes_is_enough():
    """Workers that augment images by themselves have the labels in common."""
    labels = np.arange(40) % 7
    images = np.random.default_rng(0).normal(size=(2, 40, 3, 3))
    one, other = (
        fingerprint((tf.constant(i), tf.constant(labels))).numpy().tolist()
        for i in images
    )
    assert one[0] != other[0]
    assert tell_the_same([one, other])
    turned = fingerprint((tf.constant(images[0]), tf.constant(labels[::-1])))
    swapped = fingerprint((tf.constant(images[1]), tf.constant(labels)))
    assert not tell_the_same([turned.numpy().tolist(), swapped.numpy().tolist()])
    assert not tell_the_same([one, [one[0] + 1, -1]])
    assert tell_the_same([[-1, -1], [-1, -1]])


@pytest.mark.parametrize("data", [tf.constant(1.0), (tf.constant(1.0),), None])
def test_data_without_a_batch_axis_raise_sharding_error(data):
    with pytest.raises(ShardingError, match=r"Received.*dataset.batch\(global_batch\)"):
        count_examples(data)


def test_batches_are_divided_evenly():
    sizes = (8, 3, 0)
    rows = tf.range(11)
    batches = [
        {"x": rows[:8], "rest": tf.sparse.from_dense(tf.eye(11)[:8])},
        {"x": rows[8:], "rest": tf.sparse.from_dense(tf.eye(11)[8:])},
        {"x": rows[:0], "rest": tf.sparse.from_dense(tf.eye(11)[:0])},
    ]
    assert [len(batch["x"]) for batch in batches] == list(sizes)
    dealt = dealt_evenly(batches)
    assert [len(batch["x"]) for batch in dealt] == [3, 4, 4]
    np.testing.assert_array_equal(tf.concat([b["x"] for b in dealt], 0), rows)
    together = [tf.sparse.to_dense(batch["rest"]) for batch in dealt]
    np.testing.assert_array_equal(tf.concat(together, 0), tf.eye(11))
    assert dealt_evenly(dealt) is dealt
