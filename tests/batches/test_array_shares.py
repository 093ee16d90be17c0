"""Arrays of which each worker gathers the rows of its shares, without replicas."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from keras_fastnet._keras.keras3.arrays import dataset_of_rows
from keras_fastnet.batches.fingerprints import fingerprint
from keras_fastnet.batches.shares import shares_of
from tests.batches.test_early_shares import union

ROWS = 37


def arrays():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(ROWS, 3, 2))
    x = {
        "float64": images,
        "view": images[:, ::2, 1],
        "pair": [generator.integers(0, 9, ROWS), tf.constant(images, tf.float32)],
        "text": np.array([f"text {number}" for number in range(ROWS)], object),
        "constant": np.ones((ROWS, 2)),
    }
    if importlib.util.find_spec("pandas"):
        import pandas

        x["frame"] = pandas.DataFrame({"a": np.arange(ROWS), "b": np.ones(ROWS) / 3})
        x["series"] = pandas.Series(np.arange(ROWS))
    return x, generator.integers(0, 3, ROWS)


def assert_same(one, other):
    tf.nest.assert_same_structure(one, other)
    for mine, theirs in zip(*map(tf.nest.flatten, (one, other)), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def seeded(make):
    keras.utils.set_random_seed(3)
    return make()


@pytest.mark.parametrize(
    ("shuffle", "size", "options"),
    [
        pytest.param(False, 8, {}, marks=pytest.mark.landing),
        pytest.param(
            *(True, 5, {"class_weight": {0: 1.0, 1: 2.0, 2: 3.0}}),
            marks=pytest.mark.landing,
        ),
        ("batch", ROWS, {}),
    ],
    ids=lambda value: str(value)[:14],
)
def test_the_union_of_the_shares_is_the_batch_of_keras(shuffle, size, options):
    x, y = arrays()
    adapter = ArrayDataAdapter(x, y, batch_size=size, shuffle=shuffle, **options)
    expected = seeded(adapter.get_tf_dataset)
    whole = seeded(lambda: dataset_of_rows(ArrayDataAdapter.get_tf_dataset, adapter))
    assert whole.element_spec == expected.element_spec
    # Positions of the devices of each worker.
    clusters = [[[0], [1], [2]], [[0, 2], [1, 3]]]
    shared = [
        [shares_of(whole, own, sum(map(len, cluster))).dataset for own in cluster]
        for cluster in clusters
    ]
    for _ in range(2):
        batches = list(expected)
        for mine, theirs in zip(whole, batches, strict=True):
            assert_same(mine, theirs)
        for cluster, workers in zip(clusters, shared, strict=True):
            seen = [list(worker) for worker in workers]
            assert {len(shares) for shares in seen} == {len(batches)}
            for step, batch in enumerate(batches):
                shares = [
                    own[step][device]
                    for device in range(len(cluster[0]))
                    for own in seen
                ]
                assert_same(union(shares), batch)
                assert {int(share.examples) for share in shares} == {len(batch[1])}
                if step == 0:
                    for share in shares:
                        assert_same(share.fingerprint, fingerprint(batch))
