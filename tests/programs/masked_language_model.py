"""A masked language model: a custom train step with one loss per word."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

WORDS, LENGTH, WIDTH = 20, 10, 8

loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)


class MaskedLanguageModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            # One loss per word: the tape takes the gradient of their sum.
            loss = loss_fn(labels, predictions, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.loss_tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def masked(count):
    """Returns padded sentences, some of whose words are hidden, and which."""
    generator = np.random.default_rng(0)
    words = generator.integers(1, WORDS - 1, (count, LENGTH))
    lengths = generator.integers(3, LENGTH + 1, count)
    words = np.where(np.arange(LENGTH) < lengths[:, None], words, 0)
    chosen = (np.random.default_rng(1).random(words.shape) < 0.3) & (words > 0)
    hidden = np.where(chosen, WORDS - 1, words)
    return hidden, words, chosen.astype("float64")


def train(strategy, folder):
    dataset = tf.data.Dataset.from_tensor_slices(masked(36))
    dataset = dataset.shuffle(100, seed=2, reshuffle_each_iteration=False).batch(7)
    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int64")
        h = layers.Embedding(WORDS, WIDTH, name="word")(inputs)
        h = h + layers.Embedding(LENGTH, WIDTH)(np.arange(LENGTH))
        attended = layers.MultiHeadAttention(num_heads=2, key_dim=4)(h, h, h)
        h = layers.LayerNormalization(epsilon=1e-6)(h + attended)
        h = layers.Dense(WIDTH, activation="relu")(h)
        outputs = layers.Dense(WORDS, activation="softmax", name="mlm")(h)
        model = MaskedLanguageModel(inputs, outputs, name="masked_bert")
        model.compile(optimizer=keras.optimizers.SGD(0.01))
    history = model.fit(dataset, epochs=3, verbose=0).history
    predicted = model.predict(masked(5)[0], verbose=0)
    return {"history": history, "predict": predicted.max((1, 2)).tolist()}
