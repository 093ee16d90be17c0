"""LARS under `MirroredStrategy` with two logical CPUs, in a process of its own.

Logical devices have to be set up before TensorFlow starts.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from keras_fastnet._keras.keras_api import keras
import numpy as np
import tensorflow as tf
from keras_fastnet import LARS

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
rng = np.random.default_rng(0)
TOKENS = rng.integers(0, 9, size=(32, 5))
TARGETS = rng.normal(size=(32, 2)).astype("float32")

def make():
    keras.utils.set_random_seed(1)
    tokens = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(9, 4, name="table")(tokens)
    x = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(tokens, keras.layers.Dense(2, name="head")(x))

def train(**options):
    model = make()
    schedule = keras.optimizers.schedules.CosineDecay(
        0.5, decay_steps=6, warmup_target=4.0, warmup_steps=2
    )
    optimizer = LARS(
        schedule, weight_decay=0.01, exclude_from_adaptation=["head/"], **options
    )
    model.compile(optimizer, "mse")
    model.fit(TOKENS, TARGETS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for options in ({"nesterov": True}, {"momentum": 0.0}):
    single = train(**options)
    with strategy.scope():
        mirrored = train(**options)
    assert mirrored.optimizer.describe() == single.optimizer.describe()
    assert "named bias" in mirrored.optimizer.describe()
    for ours, theirs in zip(mirrored.get_weights(), single.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for variable in mirrored.variables + mirrored.optimizer.variables:
        value = variable.value
        if isinstance(value, tf.distribute.DistributedValues):
            parts = [v.numpy() for v in strategy.experimental_local_results(value)]
            assert len(parts) == 2
            np.testing.assert_array_equal(parts[0], parts[1], variable.path)
    buffers = [v for v in mirrored.optimizer.variables if "momentum" in v.path]
    assert bool(buffers) == (options.get("momentum") != 0.0)
    assert all(isinstance(v.value, tf.distribute.DistributedValues) for v in buffers)
print("replicas agree")
"""


@pytest.mark.landing
def test_replicas_stay_equal_and_agree_with_one_device():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "replicas agree" in result.stdout
