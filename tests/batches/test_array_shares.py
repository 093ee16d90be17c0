"""Arrays of which each worker gathers the rows of its shares, without replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from keras_fastnet._keras.keras3.arrays import dataset_of_rows
from keras_fastnet.batches.fingerprints import fingerprint
from keras_fastnet.batches.shares import shares_of
from tests.batches.test_early_shares import (
    EPOCHS,
    assert_same,
    assert_union_is_that_of_one_device,
)

# Fewer than 7 batches of 5, so that both epochs are compared.
ROWS = 29


def arrays():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(ROWS, 3, 2))
    return {
        "float64": images,
        "view": images[:, ::2, 1],
        "pair": [generator.integers(0, 9, ROWS), tf.constant(images, tf.float32)],
        "text": np.array([f"text {number}" for number in range(ROWS)], object),
        "constant": np.ones((ROWS, 2)),
    }, generator.integers(0, 3, ROWS)


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

    def of_keras():
        keras.utils.set_random_seed(3)
        return adapter.get_tf_dataset()

    def of_rows():
        keras.utils.set_random_seed(3)
        return dataset_of_rows(ArrayDataAdapter.get_tf_dataset, adapter)

    expected, whole = of_keras(), of_rows()
    assert whole.element_spec == expected.element_spec
    for _ in range(EPOCHS):
        for mine, theirs in zip(whole, expected, strict=True):
            assert_same(mine, theirs)
    for workers, devices in ((3, 1), (2, 2)):
        assert_union_is_that_of_one_device(of_rows, workers, devices, of_keras())
    first = next(iter(shares_of(of_rows(), [1], 2).dataset))[0]
    assert_same(first.fingerprint, fingerprint(next(iter(of_keras()))))
