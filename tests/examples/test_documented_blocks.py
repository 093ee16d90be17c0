"""Parts of scripts that pages show run on two workers, verbatim."""

import textwrap

import pytest

from tests.documentation import ROOT, blocks

# What pages take for granted.
GIVEN = """
import math
import os

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet
import keras_fastnet as fastnet

keras.utils.set_random_seed(0)
strategy = fastnet.TorusStrategy()
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
y = x.sum(axis=1)
dataset = tf.data.Dataset.from_tensor_slices((x, y[:, None]))
global_batch = 16


def a_model(outputs=1, loss="mse"):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(outputs)])
    model.compile("sgd", loss)
    return model


with strategy.scope():
    model = a_model()
"""
TRAIN = """
before = model.get_weights()
model.fit({data}, epochs=1)
assert any((a != b).any() for a, b in zip(before, model.get_weights()))
"""
# By page and number of the block: what it needs, and what is done with it.
BLOCKS = {
    ("custom_training.md", 0): (
        "",
        """
        with strategy.scope():
            inputs = keras.Input((8,))
            model = Autoencoder(inputs, keras.layers.Dense(8)(inputs))
            model.compile("sgd")
        """,
        TRAIN.format(data="x, x"),
    ),
    ("custom_training.md", 2): ("", "assert np.isfinite(float(loss))"),
    ("feeding_workers.md", 0): (
        """
        files = ["x.tfrecord"]
        with tf.io.TFRecordWriter(f"of-{strategy.rank}") as writer:
            for row in x:
                writer.write(row.tobytes())
        os.replace(f"of-{strategy.rank}", files[0])


        def decode_and_augment(record):
            row = tf.reshape(tf.io.decode_raw(record, tf.float32), (8,))
            return row, tf.reduce_sum(row, keepdims=True)
        """,
        TRAIN.format(data="dataset"),
    ),
    ("feeding_workers.md", 1): (
        """
        lines = tf.data.Dataset.from_tensor_slices((["a b", "c d"] * 8, [0, 1] * 8))
        """,
        """
        texts, labels = next(iter(dataset))
        assert texts.shape == (16, 64)
        """,
    ),
    ("feeding_workers.md", 2): (
        """
        np.save(f"of-{strategy.rank}.npy", x)
        os.replace(f"of-{strategy.rank}.npy", "images.npy")
        """,
        "assert isinstance(x, np.memmap)",
    ),
    ("feeding_workers.md", 3): (
        """
        def load(paths):
            return x[paths]
        """,
        """
        data = Images()
        data.paths, data.labels = np.arange(64), y
        """,
        TRAIN.format(data="data"),
    ),
    ("lars.md", 0): (
        """
        with strategy.scope():
            model = a_model(4, "sparse_categorical_crossentropy")
        y = abs(y).astype(int) % 4
        """,
        "assert model.optimizer is optimizer and optimizer.iterations == 90",
    ),
    ("launcher.md", 0): ("model = a_model()", ""),
    ("torus.md", 0): ("", "assert strategy.num_workers == 2"),
    ("torus_strategy.md", 1): (
        "dataset = dataset.batch(8)",
        TRAIN.format(data="dataset"),
    ),
}


@pytest.mark.parametrize(
    ("page", "number"), BLOCKS, ids=lambda value: str(value).removesuffix(".md")
)
def test_block(two_workers, tmp_path, page, number):
    before, *after = BLOCKS[page, number]
    block = blocks(ROOT / "docs" / page, "python")[number]
    script = tmp_path / "block.py"
    script.write_text(
        "\n".join([GIVEN, textwrap.dedent(before), block, *map(textwrap.dedent, after)])
    )
    two_workers.run("documented_script", script=str(script), folder=str(tmp_path))
