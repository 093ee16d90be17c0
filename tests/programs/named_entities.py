"""Tagging words: a custom loss class, a mean over the words that are not padding."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import sentences

PUBLISHED = "keras.io/examples/nlp/ner_transformers"
CHANGED = "no dropout"
# A replica divides by its own number of words, one device by the batch's.
TOLERANCE = 0.2


class NonPaddingLoss(keras.losses.Loss):
    def __init__(self, name="ner_loss"):
        super().__init__(name=name)

    def call(self, y_true, y_pred):
        losses = keras.losses.SparseCategoricalCrossentropy(
            from_logits=False, reduction=None
        )(y_true, y_pred)
        mask = ops.cast(y_true > 0, losses.dtype)
        return ops.sum(losses * mask) / ops.sum(mask)


class Tagger(keras.Model):
    def __init__(self, tags, words, width=8):
        super().__init__()
        self.token = layers.Embedding(words, width)
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=width)
        self.norm = layers.LayerNormalization(epsilon=1e-6)
        self.hidden = layers.Dense(8, activation="relu")
        self.outputs = layers.Dense(tags, activation="softmax")

    def call(self, inputs, training=False):
        h = self.token(inputs)
        h = self.norm(h + self.attention(h, h))
        return self.outputs(self.hidden(h))


def tagged(count, seed):
    tokens = sentences(count, seed=seed)
    tags = (tokens + 6) // 7
    return tf.data.Dataset.from_tensor_slices((tokens, tags)).batch(7)


def train(strategy, folder):
    with strategy.scope():
        model = Tagger(tags=4, words=20)
        model.compile(optimizer=keras.optimizers.SGD(0.005), loss=NonPaddingLoss())
    history = model.fit(tagged(36, 0), epochs=3, verbose=0).history
    return {"history": history, "evaluate": model.evaluate(tagged(10, 1), verbose=0)}
