"""Reviews of several lengths: two bidirectional LSTMs with masks."""

import keras
from keras import layers

from tests.programs.made_data import sentences

PUBLISHED = "keras.io/examples/nlp/bidirectional_lstm_imdb"
CHANGED = "padding is masked, as in keras.io/guides/understanding_masking_and_padding"
TOLERANCE = 1e-9


def train(strategy, folder):
    x, y = sentences(36)
    validation = sentences(10, seed=1)
    with strategy.scope():
        inputs = keras.Input((None,), dtype="int32")
        h = layers.Embedding(20, 6, mask_zero=True)(inputs)
        h = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(h)
        h = layers.Bidirectional(layers.LSTM(4))(h)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(h))
        model.compile(
            optimizer=keras.optimizers.SGD(0.5),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
    history = model.fit(
        x,
        y,
        batch_size=7,
        epochs=2,
        validation_data=validation,
        shuffle=False,
        verbose=0,
    ).history
    return {
        "history": history,
        "evaluate": model.evaluate(*validation, batch_size=7, verbose=0),
    }
