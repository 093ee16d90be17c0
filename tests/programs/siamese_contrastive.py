"""A siamese network with a loss function that returns a mean."""

import keras
from keras import layers, ops

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/vision/siamese_contrastive"
CHANGED = ""
TOLERANCE = 1e-9


def contrastive(margin):
    def loss(y_true, y_pred):
        near = ops.square(y_pred)
        far = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * near + y_true * far)

    return loss


def distance(vectors):
    x, y = vectors
    total = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(total, keras.backend.epsilon()))


def pairs(count, seed):
    x1, y1 = images(count, classes=2, seed=seed)
    x2, y2 = images(count, classes=2, seed=seed + 1)
    return (x1, x2), (y1 != y2).astype("float32")


def train(strategy, folder):
    x, y = pairs(36, 0)
    validation = pairs(10, 10)
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        h = layers.Conv2D(4, 3, activation="tanh")(inputs)
        h = layers.AveragePooling2D(2)(h)
        embedding = keras.Model(
            inputs, layers.Dense(4, activation="tanh")(layers.Flatten()(h))
        )
        left, right = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
        merged = layers.Lambda(distance, output_shape=(1,))(
            [embedding(left), embedding(right)]
        )
        model = keras.Model([left, right], layers.Dense(1, "sigmoid")(merged))
        model.compile(
            loss=contrastive(margin=1.0),
            optimizer=keras.optimizers.SGD(0.2),
            metrics=["accuracy"],
        )
    history = model.fit(
        list(x),
        y,
        validation_data=(list(validation[0]), validation[1]),
        batch_size=7,
        epochs=3,
        shuffle=False,
        verbose=0,
    ).history
    return {
        "history": history,
        "evaluate": model.evaluate(list(x), y, batch_size=7, verbose=0),
    }
