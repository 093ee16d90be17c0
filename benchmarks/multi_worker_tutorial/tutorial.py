"""TensorFlow's multi-worker tutorial for Keras, with either strategy.

keras#20585 reports that the tutorial fails with Keras 3. Its data set is replaced by
one that scikit-learn ships, because MNIST would have to be downloaded.

    fastnet run --workers 2 tutorial.py [torus | stock]
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_fastnet

PER_WORKER_BATCH_SIZE = 64


def digits_dataset(batch_size: int) -> tf.data.Dataset:
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    return (
        tf.data.Dataset.from_tensor_slices((images, digits.target.astype(np.int64)))
        .shuffle(len(images))
        .repeat()
        .batch(batch_size)
    )


def build_and_compile_cnn_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.layers.InputLayer(shape=(8, 8)),
            keras.layers.Reshape(target_shape=(8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
if "stock" in sys.argv:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    strategy = keras_fastnet.TorusStrategy()
dataset = digits_dataset(PER_WORKER_BATCH_SIZE * num_workers)
with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()
multi_worker_model.fit(dataset, epochs=3, steps_per_epoch=70)
