"""Contrastive learning: every example of a batch is compared with all others."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images, normal

PUBLISHED = "keras.io/examples/vision/semisupervised_simclr"
CHANGED = "the two views come with the data; no accuracy, which jumps by examples"
# A replica compares only its own examples, half of all: its loss differs.
TOLERANCE = 0.4


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.temperature = 0.1
        self.encoder = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(8, activation="relu"),
            ]
        )
        self.head = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.probe = keras.Sequential([keras.Input((8,)), layers.Dense(4)])

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_tracker = keras.metrics.Mean(name="c_loss")
        self.probe_tracker = keras.metrics.Mean(name="p_loss")

    @property
    def metrics(self):
        return [self.contrastive_tracker, self.probe_tracker]

    def contrastive_loss(self, one, other):
        one, other = ops.normalize(one, axis=1), ops.normalize(other, axis=1)
        similarities = ops.matmul(one, ops.transpose(other)) / self.temperature
        labels = ops.arange(ops.shape(one)[0])
        return (
            keras.losses.sparse_categorical_crossentropy(
                labels, similarities, from_logits=True
            )
            + keras.losses.sparse_categorical_crossentropy(
                labels, ops.transpose(similarities), from_logits=True
            )
        ) / 2

    def train_step(self, data):
        view, other_view, pictures, labels = data
        with tf.GradientTape() as tape:
            one = self.head(self.encoder(view, training=True), training=True)
            other = self.head(self.encoder(other_view, training=True), training=True)
            loss = ops.mean(self.contrastive_loss(one, other))
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.contrastive_optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        self.contrastive_tracker.update_state(loss)
        with tf.GradientTape() as tape:
            logits = self.probe(self.encoder(pictures, training=False))
            loss = self.probe_loss(labels, logits)
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        self.probe_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        pictures, labels = data
        logits = self.probe(self.encoder(pictures, training=False), training=False)
        self.probe_tracker.update_state(self.probe_loss(labels, logits))
        return {m.name: m.result() for m in self.metrics[1:]}


def train(strategy, folder):
    x, y = images(45)
    views = [x + 0.1 * normal(*x.shape, seed=seed) for seed in (1, 2)]
    dataset = tf.data.Dataset.from_tensor_slices((*views, x, y)).batch(15)
    test = tf.data.Dataset.from_tensor_slices(images(20, seed=3)).batch(7)
    with strategy.scope():
        model = ContrastiveModel()
        model.compile(
            contrastive_optimizer=keras.optimizers.SGD(0.002),
            probe_optimizer=keras.optimizers.SGD(0.1),
        )
    history = model.fit(dataset, epochs=3, validation_data=test, verbose=0).history
    return {"history": history, "evaluate": model.evaluate(test, verbose=0)}
