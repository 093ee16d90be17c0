"""A small language model: two outputs, one without a loss, text after each epoch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import sentences

PUBLISHED = "keras.io/examples/generative/text_generation_with_miniature_gpt"
CHANGED = "no dropout; the likeliest word in place of a drawn one"
TOLERANCE = 1e-9

WORDS, LENGTH, WIDTH = 20, 10, 8


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, WIDTH)
        self.hidden = layers.Dense(WIDTH, activation="relu")
        self.norm = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        length = ops.shape(inputs)[1]
        earlier = ops.arange(length)[:, None] >= ops.arange(length)
        mask = ops.tile(ops.expand_dims(earlier, 0), [ops.shape(inputs)[0], 1, 1])
        h = self.attention(inputs, inputs, attention_mask=mask)
        return self.norm(inputs + self.hidden(h))


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, start, steps):
        super().__init__()
        self.start = start
        self.steps = steps
        self.texts = []

    def on_epoch_end(self, epoch, logs=None):
        text = list(self.start)
        for _ in range(self.steps):
            padded = np.array([text + [0] * (LENGTH - len(text))])
            y, _ = self.model.predict(padded, verbose=0)
            text.append(int(y[0, len(text) - 1].argmax()))
        self.texts.append(text)


def train(strategy, folder):
    words, _ = sentences(36, length=LENGTH + 1, words=WORDS)
    dataset = tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:]))
    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        h = layers.Embedding(WORDS, WIDTH)(inputs)
        h = Block()(h)
        model = keras.Model(inputs, [layers.Dense(WORDS)(h), h])
        model.compile(
            keras.optimizers.SGD(0.5),
            loss=[keras.losses.SparseCategoricalCrossentropy(from_logits=True), None],
        )
    generator = TextGenerator([3, 5], 2)
    history = model.fit(
        dataset.shuffle(64, seed=2, reshuffle_each_iteration=False).batch(7),
        epochs=2,
        callbacks=[generator],
        verbose=0,
    ).history
    return {"history": history, "texts": generator.texts}
