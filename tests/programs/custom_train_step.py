"""Custom train and test steps, with their own metrics, losses and sample weights."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class ByKeras(keras.Model):
    def train_step(self, data):
        x, y, sample_weight = data if len(data) == 3 else (*data, None)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class ByItself(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


def train(strategy, folder):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(36, 8))
    y = x.sum(1, keepdims=True) + generator.normal(size=(36, 1))
    weights = generator.random((36, 1))
    options = {"epochs": 3, "batch_size": 7, "shuffle": False, "verbose": 0}
    with strategy.scope():
        inputs = keras.Input((8,))
        h = layers.Dense(4, activation="tanh")(inputs)
        by_keras = ByKeras(inputs, layers.Dense(1)(h))
        by_keras.compile(
            optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"]
        )
        inputs = keras.Input((8,))
        by_itself = ByItself(inputs, layers.Dense(1)(inputs))
        by_itself.compile(optimizer=keras.optimizers.SGD(0.05))
    weighed = by_keras.fit(
        x, y, sample_weight=weights, validation_data=(x[:10], y[:10]), **options
    ).history
    plain = by_itself.fit(x, y, **options).history
    return {
        "weighed": weighed,
        "by itself": plain,
        "evaluate": by_keras.evaluate(x, y, batch_size=7, verbose=0),
    }
