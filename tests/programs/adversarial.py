"""Adversarial regularization: the loss of images moved against their gradient."""

import keras
import tensorflow as tf

from tests.programs.made_data import images

PUBLISHED = (
    "tensorflow.org/neural_structured_learning/tutorials/adversarial_keras_cnn_mnist"
)
CHANGED = "a train step in place of the library's wrapper, which lacks Keras 3"
TOLERANCE = 1e-9


class AdversarialModel(keras.Model):
    def __init__(self, base, multiplier=0.2, step=0.1):
        super().__init__()
        self.base = base
        self.multiplier = multiplier
        self.step = step
        self.adversarial_tracker = keras.metrics.Mean(name="adversarial_loss")

    def call(self, x, training=False):
        return self.base(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            direction = tf.sign(inner.gradient(loss, x))
            moved = tf.stop_gradient(x + self.step * direction)
            adversarial = self.compute_loss(x, y, self(moved, training=True))
            total = loss + self.multiplier * adversarial
        weights = self.trainable_variables
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.adversarial_tracker.update_state(adversarial)
        return {**self.compute_metrics(x, y, y_pred), "total_loss": total}


def train(strategy, folder):
    dataset = tf.data.Dataset.from_tensor_slices(images(36)).batch(7)
    testing = tf.data.Dataset.from_tensor_slices(images(10, seed=1)).batch(7)
    with strategy.scope():
        base = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(4),
            ]
        )
        model = AdversarialModel(base)
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(dataset, epochs=3, validation_data=testing, verbose=0).history
    return {"history": history, "evaluate": model.evaluate(testing, verbose=0)}
