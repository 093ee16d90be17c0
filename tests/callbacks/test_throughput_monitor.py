"""`ThroughputMonitor` logs agree with the training."""

import pytest
import tensorflow as tf

from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet.callbacks import ThroughputMonitor
from tests.distributed.jobs import compiled_network, examples

SPEEDS = {
    "examples_per_second",
    "updates_per_second",
    "seconds_per_update",
    "input_wait_share",
}


def fit(optimizer):
    data = tf.data.Dataset.from_tensor_slices(examples(100)).batch(16)
    model = compiled_network(None, lambda: optimizer)
    callbacks = [ThroughputMonitor()]
    return model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history


def test_examples_per_update():
    history = fit(LargeBatchOptimizer(LARS(0.1), 2))
    for epoch in range(2):
        speeds = {key: history[key][epoch] for key in SPEEDS}
        updates = speeds["updates_per_second"]
        assert updates * speeds["seconds_per_update"] == pytest.approx(1.0)
        # 100 examples in 7 micro-batches, 4 updates.
        assert speeds["examples_per_second"] / updates == pytest.approx(100 / 4)
        assert 0 <= speeds["input_wait_share"] <= 1


def test_only_updates_are_logged_for_data_of_keras():
    history = fit(LARS(0.1))
    assert SPEEDS & set(history) == {"updates_per_second", "seconds_per_update"}
