"""A replica's share of a global batch, without replicas."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet.batches.fingerprints import (
    fingerprint,
    fingerprints_match,
    targets_differ,
)
from keras_fastnet.batches.global_batch import (
    count_examples,
    dealt_evenly,
    with_examples,
)
from keras_fastnet.errors import ShardingError


def shared(data, replicas):
    return [with_examples(data, i, replicas).data for i in range(replicas)]


def test_every_kind_of_tensor_is_shared():
    dense = tf.reshape(tf.range(14), (7, 2))
    data = {
        "dense": dense,
        "text": tf.constant(list("abcdefg")),
        "ragged": tf.RaggedTensor.from_row_lengths(tf.range(21), range(7)),
        "sparse": tf.sparse.from_dense(dense),
        "nothing": None,
    }
    parts = shared(data, 3)
    assert [len(part["dense"]) for part in parts] == [2, 2, 3]
    for name in ("dense", "text", "ragged"):
        union = tf.concat([part[name] for part in parts], 0)
        assert tf.reduce_all(union == data[name])
    sparse = tf.sparse.concat(0, [part["sparse"] for part in parts])
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), dense)
    assert all(part["nothing"] is None for part in parts)


def test_shares_in_a_graph_keep_their_numbers_of_columns():
    # Layers are built from them.
    specs = [tf.TensorSpec((None, 3)), tf.SparseTensorSpec((None, 3))]

    @tf.function(input_signature=[specs])
    def share(data):
        own = shared(data, 2)[1]
        assert [leaf.shape.as_list() for leaf in own] == [[None, 3]] * 2
        return own

    rows = np.arange(12, dtype="float32").reshape(4, 3)
    dense, sparse = share([tf.constant(rows), tf.sparse.from_dense(rows)])
    np.testing.assert_array_equal(dense, rows[2:])
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), rows[2:])


def marks(*data):
    return fingerprint(tuple(map(tf.constant, data))).numpy().tolist()


def test_fingerprints_differ_by_order_length_and_dtype():
    x = np.arange(300.0).reshape(100, 3)
    batches = [(x,), (x[::-1],), (x[:50],), (x.astype("float32"),), (x, x)]
    prints = {str(marks(*batch)) for batch in [*batches, (np.vstack([x, x]),)]}
    assert len(prints) == 6
    assert str(marks(x)) in prints
    # Equal examples tell nothing about their order.
    assert marks(np.ones(4), np.zeros((4, 3))) == [-1, -1]


def test_fingerprints_read_more_than_one_feature():
    """Images without labels, black around their middle, in two orders."""
    images = np.zeros((64 * 8, 16, 16), "float32")
    images[:, 4:12, 4:12] = np.random.default_rng(0).normal(size=(512, 8, 8))
    assert marks(images) != marks(images[::-1])


def test_one_tensor_with_equal_hashes_is_enough():
    """Workers that augment images by themselves have the labels in common."""
    labels = np.arange(40) % 7
    images = np.random.default_rng(0).normal(size=(2, 40, 3, 3))
    one, other = (marks(i, labels) for i in images)
    assert one[0] != other[0]
    assert fingerprints_match([one, other])
    assert not fingerprints_match([marks(images[0], labels[::-1]), other])
    assert not fingerprints_match([one, [one[0] + 1, -1]])
    assert fingerprints_match([[-1, -1], [-1, -1]])
    pair = (tf.TensorSpec([]), tf.TensorSpec([]))
    renumbered = [one, marks(images[0], 6 - labels)]
    assert targets_differ(renumbered, pair)
    assert not targets_differ([one, other], pair)
    assert not targets_differ(renumbered, {"x": pair[0], "y": pair[1]})


@pytest.mark.parametrize("data", [(tf.constant(1.0),), None])
def test_data_without_a_batch_axis_raise_sharding_error(data):
    with pytest.raises(ShardingError, match=r"Received.*dataset.batch\(global_batch\)"):
        count_examples(data)


def test_batches_are_divided_evenly():
    rows, sparse = tf.range(11), tf.eye(11)
    batches = [
        {"x": rows[part], "rest": tf.sparse.from_dense(sparse[part])}
        for part in (slice(8), slice(8, 11), slice(0))
    ]
    dealt = dealt_evenly(batches)
    assert [len(batch["x"]) for batch in dealt] == [3, 4, 4]
    np.testing.assert_array_equal(tf.concat([b["x"] for b in dealt], 0), rows)
    together = [tf.sparse.to_dense(batch["rest"]) for batch in dealt]
    np.testing.assert_array_equal(tf.concat(together, 0), sparse)
    assert dealt_evenly(dealt) is dealt
