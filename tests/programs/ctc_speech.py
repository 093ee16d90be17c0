"""Speech to text: Keras's CTC loss, and texts of several lengths."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.programs.made_data import normal

PUBLISHED = "keras.io/examples/audio/ctc_asr"
CHANGED = "no dropout, no batch normalization"
# TensorFlow computes CTC in single precision.
TOLERANCE = 1e-6

LETTERS = 5


def recordings(count, seed):
    generator = np.random.default_rng(seed)
    sounds = normal(count, 12, 4, seed=seed)
    lengths = generator.integers(1, 4, count)
    texts = generator.integers(1, LETTERS, (count, 3))
    texts[np.arange(3) >= lengths[:, None]] = 0
    for sound, text in zip(sounds, texts, strict=True):
        for place, letter in enumerate(text):
            sound[4 * place : 4 * place + 2, letter - 1] += 2.0
    return tf.data.Dataset.from_tensor_slices((sounds, texts)).batch(7).prefetch(1)


def train(strategy, folder):
    dataset, validation = recordings(36, 0), recordings(11, 1)
    with strategy.scope():
        inputs = keras.Input((12, 4))
        h = layers.Conv1D(6, 3, padding="same", activation="relu")(inputs)
        h = layers.Bidirectional(layers.GRU(4, return_sequences=True))(h)
        model = keras.Model(inputs, layers.Dense(LETTERS)(h))
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss=keras.losses.CTC())
    history = model.fit(
        dataset, validation_data=validation, epochs=3, verbose=0
    ).history
    return {"history": history, "evaluate": model.evaluate(validation, verbose=0)}
