"""The memory of a replica, against what optimizers keep and processes take."""

import math
import os
import re
import subprocess
import sys

import pytest

from keras_fastnet import LARS, LargeBatchOptimizer, cli
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.models import cifar_resnet
from keras_fastnet.scaling.memory import memory_of

OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "lars": LARS,
    "adam": keras.optimizers.Adam,
}


def nbytes(variables):
    """Returns the bytes of all variables but counters and rates."""
    return sum(4 * math.prod(v.shape) for v in variables if len(v.shape))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_slots_are_exact(name):
    model = cifar_resnet(8)
    optimizer = LargeBatchOptimizer(OPTIMIZERS[name]())
    optimizer.build(model.trainable_variables)
    memory = memory_of(model, 4, name)
    assert memory.weights == sum(weight.nbytes for weight in model.get_weights())
    assert memory.gradients == nbytes(model.trainable_variables)
    assert memory.slots == nbytes(optimizer.inner_optimizer.variables)
    kept = nbytes(optimizer.variables)
    assert memory.slots + memory.accumulated in (kept, kept + memory.slots)
    assert memory.total == memory.activations + memory.gradients + (
        memory.weights + memory.slots + memory.accumulated
    )


def test_activations_are_what_gradients_read():
    inputs = keras.Input((8,))
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "relu")])
    half = keras.layers.Dense(5, "relu", dtype="mixed_float16")(inner(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(half))
    # Of 7 examples: the 3 outputs of ReLU in float32, and in float16 for the next
    # matrix; its 5, and the same in float32; not the data. And 3 x 5 float16 weights.
    numbers = 7 * (4 * 3 + 2 * 3 + 2 * 5 + 4 * 5) + 2 * 3 * 5
    assert memory_of(model, 7, "sgd").activations == numbers


TRAINING = """
import resource, sys
import numpy as np, tensorflow as tf
from keras_fastnet._keras.keras_api import keras
from tests.scaling.test_memory import network

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
batch = int(sys.argv[2])
model = network(sys.argv[1])
model.compile("sgd", "mse", jit_compile=False)
x = np.zeros((batch, *model.input_shape[1:]), "float32")
y = np.zeros((batch, 10), "float32")
data = tf.data.Dataset.from_tensors((x, y)).repeat(3)
model.fit(data, verbose=0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def network(name):
    if name == "residual":
        return cifar_resnet(20)
    if name == "dense":
        layers = [keras.layers.Dense(1024, "relu") for _ in range(6)]
        return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    inputs = keras.Input((128, 64))
    x = keras.layers.MultiHeadAttention(4, 16)(inputs, inputs)
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, inputs]))
    x = keras.layers.Dense(64)(keras.layers.Dense(256, "gelu")(x))
    return keras.Model(inputs, keras.layers.Dense(10)(x[:, 0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small", "large"),
    [("dense", 64, 4096), ("residual", 8, 128), ("attention", 8, 128)],
)
def test_activations_are_within_a_factor_of_what_a_process_takes(name, small, large):
    """Peaks of two processes, whose difference is that of their activations."""

    def peak(batch):
        command = [sys.executable, "-c", TRAINING, name, str(batch)]
        # Otherwise glibc keeps large blocks that were freed, and splits them.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        return int(subprocess.check_output(command, env=environment).split()[-1])

    taken = peak(large) - peak(small)
    model = network(name)
    few, many = (memory_of(model, batch, "sgd") for batch in (small, large))
    estimated = many.activations - few.activations
    # Gradients of activations need memory too, one after another.
    assert 0.9 < taken / estimated < 1.8, taken / estimated


def test_plan_prints_the_memory_of_an_application(capsys):
    words = "plan --ranks 2 --model MobileNetV2 --device-batch 8 --optimizer adam"
    assert cli.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "memory of a replica, 8 examples a step in float32" in shown
    found = dict(re.findall(r"^(\S.*?)  +([\d,.]+) MB", shown, re.M))
    # 3,504,872 trained weights of 3,538,984.
    assert found["weights"] == f"{4 * 3_538_984 / 1e6:.1f}"
    assert found["gradients"] == f"{4 * 3_504_872 / 1e6:.1f}"
    assert found["adam"] == f"{8 * 3_504_872 / 1e6:.1f}"
    *parts, total = (float(number.replace(",", "")) for number in found.values())
    assert total == pytest.approx(sum(parts), abs=0.3)
