"""Runs the scenarios in a process with two devices of MirroredStrategy.

    python -m benchmarks.traps.two_devices

Prints a JSON object of [observation, whether it is right] by scenario.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import tensorflow as tf

from benchmarks.traps import scenarios

tf.get_logger().setLevel("ERROR")
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = {}
for scenario in scenarios.ON_TWO_DEVICES:
    keras.backend.clear_session()
    try:
        found[scenario.__name__] = scenario(strategy)
    except Exception as error:
        found[scenario.__name__] = f"{type(error).__name__}: {error}"[:300], False
print(json.dumps(found))
