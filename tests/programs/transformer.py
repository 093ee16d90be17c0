"""Text classification with a custom Transformer block."""

import keras
from keras import layers, ops

from tests.programs.made_data import sentences

PUBLISHED = "keras.io/examples/nlp/text_classification_with_transformer"
CHANGED = "no dropout"
TOLERANCE = 1e-9


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, hidden, rate=0.0):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
        self.feed_forward = keras.Sequential(
            [layers.Dense(hidden, activation="relu"), layers.Dense(width)]
        )
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        h = self.dropout1(self.attention(inputs, inputs))
        h = self.norm1(inputs + h)
        return self.norm2(h + self.dropout2(self.feed_forward(h)))


class TokenAndPosition(layers.Layer):
    def __init__(self, length, words, width):
        super().__init__()
        self.token = layers.Embedding(words, width)
        self.position = layers.Embedding(length, width)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token(x) + self.position(positions)


def train(strategy, folder):
    x, y = sentences(36)
    validation = sentences(10, seed=1)
    with strategy.scope():
        inputs = keras.Input((10,))
        h = TokenAndPosition(10, 20, 8)(inputs)
        h = TransformerBlock(8, 2, 8)(h)
        h = layers.GlobalAveragePooling1D()(h)
        h = layers.Dense(6, activation="relu")(h)
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(h))
        model.compile(
            optimizer=keras.optimizers.SGD(0.2),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    history = model.fit(
        x,
        y,
        batch_size=7,
        epochs=3,
        validation_data=validation,
        shuffle=False,
        verbose=0,
    ).history
    return {
        "history": history,
        "evaluate": model.evaluate(*validation, batch_size=7, verbose=0),
    }
