"""Several workers: an infinite dataset, `steps_per_epoch`, a model saved by all."""

import json
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.programs.made_data import images

PUBLISHED = "tensorflow.org/tutorials/distribute/multi_worker_with_keras"
CHANGED = ""
TOLERANCE = 1e-9


def dataset(batch_size):
    pictures, labels = images(60)
    x = (pictures * 255).astype(np.uint8)[..., 0]
    x = x / np.float64(255)
    return (
        tf.data.Dataset.from_tensor_slices((x, labels))
        .shuffle(60, seed=2, reshuffle_each_iteration=False)
        .repeat()
        .batch(batch_size)
    )


def build_and_compile_model():
    model = keras.Sequential(
        [
            keras.layers.InputLayer(shape=(8, 8)),
            keras.layers.Reshape(target_shape=(8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


def write_path(path, task):
    """Returns the path for the chief, and a separate one for each other worker."""
    if task == 0:
        return path
    folder = path.with_name(f"workertemp_{task}")
    folder.mkdir()
    return folder / path.name


def train(strategy, folder):
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    task = config.get("task", {}).get("index", 0)
    batches = dataset(15)
    with strategy.scope():
        model = build_and_compile_model()
    history = model.fit(batches, epochs=3, steps_per_epoch=5, verbose=0).history
    path = write_path(pathlib.Path(folder, "keras-model.keras"), task)
    model.save(path)
    loaded = keras.models.load_model(path)
    x, y = images(12, seed=1)
    return {
        "history": history,
        "loaded": loaded(x[:5, ..., 0]).numpy().max(1).tolist(),
        "evaluate": model.evaluate(x[..., 0], y, batch_size=7, verbose=0),
    }
