"""Keras's guide: `fit` within the scope, checkpoints per epoch, and resuming."""

import os

import keras
import tensorflow as tf

from tests.programs.made_data import images

PUBLISHED = "keras.io/guides/distributed_training_with_tensorflow"
CHANGED = ""
TOLERANCE = 1e-9


def compiled_model():
    inputs = keras.Input((64,))
    h = keras.layers.Dense(8, activation="relu")(inputs)
    h = keras.layers.Dense(8, activation="relu")(h)
    model = keras.Model(inputs, keras.layers.Dense(4)(h))
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def datasets():
    def dataset(count, seed):
        x, y = images(count, seed=seed)
        return tf.data.Dataset.from_tensor_slices((x.reshape(-1, 64), y)).batch(7)

    return dataset(36, 0), dataset(10, 1), dataset(12, 2)


def make_or_restore(folder):
    checkpoints = [os.path.join(folder, name) for name in os.listdir(folder)]
    if checkpoints:
        return keras.models.load_model(max(checkpoints, key=os.path.getctime))
    return compiled_model()


def run_training(strategy, folder, epochs):
    with strategy.scope():
        model = make_or_restore(folder)
        callbacks = [
            keras.callbacks.ModelCheckpoint(
                filepath=os.path.join(folder, "ckpt-{epoch}.keras"),
                save_freq="epoch",
            )
        ]
        training, validation, testing = datasets()
        history = model.fit(
            training,
            epochs=epochs,
            callbacks=callbacks,
            validation_data=validation,
            verbose=0,
        ).history
    return history, model.evaluate(testing, verbose=0)


def train(strategy, folder):
    checkpoints = os.path.join(folder, "ckpt")
    os.makedirs(checkpoints, exist_ok=True)
    first, _ = run_training(strategy, checkpoints, epochs=2)
    second, evaluated = run_training(strategy, checkpoints, epochs=1)
    return {"history": first, "restored": second, "evaluate": evaluated}
