"""A recommender: embeddings of users and films, given by name, and L2 penalties."""

import keras
import numpy as np
from keras import layers, ops

PUBLISHED = "keras.io/examples/structured_data/collaborative_filtering_for_movielens"
CHANGED = "inputs by name"
TOLERANCE = 1e-9

USERS, FILMS = 9, 12


class Recommender(keras.Model):
    def __init__(self, users, films, size, **kwargs):
        super().__init__(**kwargs)
        options = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.l2(1e-3),
        }
        self.user = layers.Embedding(users, size, **options)
        self.user_bias = layers.Embedding(users, 1)
        self.film = layers.Embedding(films, size, **options)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, inputs):
        user, film = inputs["user"], inputs["film"]
        match = ops.sum(self.user(user) * self.film(film), axis=-1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


def ratings(count, seed):
    generator = np.random.default_rng(seed)
    user = generator.integers(0, USERS, count)
    film = generator.integers(0, FILMS, count)
    return {"user": user, "film": film}, ((user + film) % 3 / 2).astype("float32")


def train(strategy, folder):
    x, y = ratings(71, 0)
    validation = ratings(20, 1)
    with strategy.scope():
        model = Recommender(USERS, FILMS, 4)
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.SGD(0.5),
            metrics=["mean_absolute_error"],
        )
    history = model.fit(
        x,
        y,
        batch_size=15,
        epochs=3,
        shuffle=False,
        validation_data=validation,
        verbose=0,
    ).history
    return {
        "history": history,
        "evaluate": model.evaluate(*validation, batch_size=7, verbose=0),
        "predict": model.predict(x, batch_size=7, verbose=0)[:5, 0].tolist(),
    }
