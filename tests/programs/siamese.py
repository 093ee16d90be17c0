"""A siamese network: custom steps with a triplet loss per example."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/vision/siamese_network"
CHANGED = ""
TOLERANCE = 1e-9


class Distance(layers.Layer):
    def call(self, anchor, positive, negative):
        near = ops.sum(tf.square(anchor - positive), -1)
        far = ops.sum(tf.square(anchor - negative), -1)
        return near, far


class Siamese(keras.Model):
    def __init__(self, network, margin=0.5):
        super().__init__()
        self.network = network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._triplet_loss(data)
        # One loss per example: the tape takes the gradient of their sum.
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.network.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._triplet_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _triplet_loss(self, data):
        near, far = self.network(data)
        return ops.maximum(near - far + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


def triplets(count, seed):
    anchor, _ = images(count, classes=1, seed=seed)
    positive, _ = images(count, classes=1, seed=seed + 1)
    negative, _ = images(count, classes=4, seed=seed + 2)
    return tf.data.Dataset.zip(
        tuple(
            tf.data.Dataset.from_tensor_slices(x) for x in (anchor, positive, negative)
        )
    )


def train(strategy, folder):
    dataset = (
        triplets(36, 0)
        .shuffle(64, seed=5, reshuffle_each_iteration=False)
        .batch(7, drop_remainder=False)
    )
    validation = triplets(10, 10).batch(7, drop_remainder=False).prefetch(2)
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        h = layers.Conv2D(4, 3, strides=2, activation="relu")(inputs)
        h = layers.Dense(8, activation="relu")(layers.Flatten()(h))
        embedding = keras.Model(inputs, layers.Dense(4)(h), name="embedding")
        anchor, positive, negative = (
            keras.Input((8, 8, 1), name=name) for name in "apn"
        )
        distances = Distance()(
            embedding(anchor), embedding(positive), embedding(negative)
        )
        siamese = Siamese(keras.Model([anchor, positive, negative], distances))
        siamese.compile(optimizer=keras.optimizers.SGD(0.002))
    history = siamese.fit(
        dataset, epochs=3, validation_data=validation, verbose=0
    ).history
    return {"history": history, "evaluate": siamese.evaluate(validation, verbose=0)}
