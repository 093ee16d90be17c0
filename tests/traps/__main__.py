"""Runs the scenarios in a process with two devices, for one kit.

    python -m tests.traps ours|stock

Prints a JSON object of [observation, whether it is right] by scenario.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import tensorflow as tf

from tests.traps import scenarios
from tests.traps.kits import Ours, Stock

tf.get_logger().setLevel("ERROR")
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
kit = {"ours": Ours, "stock": Stock}[sys.argv[1]]()
found = {}
for scenario in scenarios.ALL:
    keras.backend.clear_session()
    try:
        found[scenario.__name__] = scenario(kit)
    except Exception as error:
        found[scenario.__name__] = f"{type(error).__name__}: {error}"[:300], False
print(json.dumps(found))
