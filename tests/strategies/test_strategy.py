"""The strategy for where a script runs."""

import subprocess
import sys

import pytest

ONE = """
import keras, keras_fastnet
import tensorflow as tf
strategy = keras_fastnet.strategy()
assert strategy is tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras_fastnet.LargeBatchOptimizer(keras_fastnet.LARS(), 2), "mse")
model.fit(tf.ones([8, 3]), tf.ones([8, 1]), batch_size=4, verbose=0)
print("updates", int(model.optimizer.iterations.numpy()))
"""

TWO_DEVICES = """
import keras_fastnet
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, halves)
strategy = keras_fastnet.strategy(grid=(2, 1))
print(type(strategy).__name__, strategy.grid)
"""

NO_TPU = """
import keras_fastnet
for options in ({}, {"grid": "ring"}):
    try:
        keras_fastnet.strategy("local", **options)
    except Exception as error:
        print(type(error).__name__, error)
"""


def printed(command, environment):
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        (
            ONE,
            [
                "fastnet: no distribution: one CPU, and no cluster is described",
                "updates 1",
            ],
        ),
        (
            TWO_DEVICES,
            [
                "fastnet: TorusStrategy on 2 CPUs of one worker",
                "TorusStrategy 2x1",
            ],
        ),
    ],
    ids=["one device", "two devices"],
)
def test_strategy_prints_its_choice(script, lines, environment):
    text = printed([sys.executable, "-c", script], environment)
    assert [line for line in text.splitlines() if line] == lines


def test_unreachable_tpu_raises_cluster_error(environment):
    unreachable, options = printed(
        [sys.executable, "-c", NO_TPU], environment
    ).splitlines()
    assert unreachable.startswith("ClusterError") and "'local'" in unreachable
    assert options.startswith("ValueError") and "grid" in options
