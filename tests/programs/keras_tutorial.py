"""TensorFlow's Keras tutorial: callbacks, checkpoints, a rate per epoch, saving."""

import os
import pathlib

import keras
import tensorflow as tf

from tests.programs.made_data import images

PUBLISHED = "tensorflow.org/tutorials/distribute/keras"
CHANGED = ""
TOLERANCE = 1e-9


def decay(epoch):
    if epoch < 1:
        return 0.1
    return 0.03 if epoch < 2 else 0.01


def train(strategy, folder):
    pictures, labels = images(36)
    training = tf.data.Dataset.from_tensor_slices((pictures, labels)).cache()
    training = training.shuffle(64, seed=3, reshuffle_each_iteration=False).batch(15)
    testing = tf.data.Dataset.from_tensor_slices(images(12, seed=1)).batch(7)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(4),
            ]
        )
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(learning_rate=0.1),
            metrics=["accuracy"],
        )
    checkpoints = pathlib.Path(folder, "checkpoints")
    checkpoints.mkdir(exist_ok=True)
    rates = []

    class PrintRate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(model.optimizer.learning_rate.numpy()))

    callbacks = [
        keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "logs")),
        keras.callbacks.ModelCheckpoint(
            filepath=str(checkpoints / "ckpt_{epoch}.weights.h5"),
            save_weights_only=True,
        ),
        keras.callbacks.LearningRateScheduler(decay),
        PrintRate(),
    ]
    history = model.fit(training, epochs=3, callbacks=callbacks, verbose=0).history
    latest = max(checkpoints.iterdir(), key=lambda path: path.stat().st_mtime)
    model.load_weights(latest)
    evaluated = model.evaluate(testing, verbose=0)
    path = os.path.join(folder, "my_model.keras")
    model.save(path)
    with strategy.scope():
        replicated = keras.models.load_model(path)
        replicated.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(),
            metrics=["accuracy"],
        )
    again = replicated.evaluate(testing, verbose=0)
    return {
        "history": history,
        "rates": rates,
        "evaluate": evaluated,
        "replicated": again,
    }
