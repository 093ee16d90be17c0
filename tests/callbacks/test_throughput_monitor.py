"""`ThroughputMonitor` logs agree with the training."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import ThroughputMonitor

SPEEDS = {
    "examples_per_second",
    "updates_per_second",
    "seconds_per_update",
    "input_wait_share",
}


def fit(optimizer, data, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    monitor = ThroughputMonitor()
    return model.fit(
        data, shuffle=False, verbose=0, callbacks=[monitor], **options
    ).history


def dataset():
    examples = np.ones((100, 4), "float32"), np.ones((100, 1), "float32")
    return tf.data.Dataset.from_tensor_slices(examples).batch(16)


def test_examples_per_update():
    history = fit(LargeBatchOptimizer(LARS(0.1), 2), dataset(), epochs=2)
    for epoch in range(2):
        speeds = {key: history[key][epoch] for key in SPEEDS}
        assert speeds["updates_per_second"] * speeds["seconds_per_update"] == (
            pytest.approx(1.0)
        )
        # 100 examples in 7 micro-batches, 4 updates.
        ratio = speeds["examples_per_second"] / speeds["updates_per_second"]
        assert ratio == pytest.approx(100 / 4)
        assert 0 <= speeds["input_wait_share"] <= 1


def test_only_updates_are_logged_for_data_of_keras():
    history = fit(LARS(0.1), dataset())
    assert SPEEDS & set(history) == {"updates_per_second", "seconds_per_update"}
