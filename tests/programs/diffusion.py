"""Denoising diffusion: custom steps, a loss per pixel and a network of averages."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images, normal

PUBLISHED = "keras.io/examples/generative/ddim"
CHANGED = "noise and times come with the data; no batch normalization"
TOLERANCE = 1e-9


def network():
    noisy = keras.Input((8, 8, 1))
    variances = keras.Input((1, 1, 1))
    e = layers.UpSampling2D(8, interpolation="nearest")(variances)
    h = layers.Conv2D(4, 1)(noisy)
    h = layers.Concatenate()([h, e])
    h = layers.Conv2D(4, 3, padding="same", activation="swish")(h)
    outputs = layers.Conv2D(1, 1, kernel_initializer="zeros")(h)
    return keras.Model([noisy, variances], outputs, name="unet")


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def schedule(self, times):
        start, end = np.arccos(0.95), np.arccos(0.02)
        angles = start + times * (end - start)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        noises = network([noisy, noise_rates**2], training=training)
        return noises, (noisy - noise_rates * noises) / signal_rates

    def noised(self, data):
        pictures, noises, times = data
        pictures = self.normalizer(pictures, training=True)
        noise_rates, signal_rates = self.schedule(times)
        noisy = signal_rates * pictures + noise_rates * noises
        return pictures, noises, (noisy, noise_rates, signal_rates)

    def train_step(self, data):
        pictures, noises, noised = self.noised(data)
        with tf.GradientTape() as tape:
            guessed_noises, guessed = self.denoise(*noised, training=True)
            # A mean over the last axis only: the tape sums the rest.
            noise_loss = self.loss(noises, guessed_noises)
            image_loss = self.loss(pictures, guessed)
        weights = self.network.trainable_weights
        gradients = tape.gradient(noise_loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, average in zip(
            self.network.weights, self.ema_network.weights, strict=True
        ):
            average.assign(0.9 * average + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        pictures, noises, noised = self.noised(data)
        guessed_noises, guessed = self.denoise(*noised, training=False)
        self.noise_loss_tracker.update_state(self.loss(noises, guessed_noises))
        self.image_loss_tracker.update_state(self.loss(pictures, guessed))
        return {m.name: m.result() for m in self.metrics}


def noised_images(count, seed):
    pictures, _ = images(count, seed=seed)
    times = np.random.default_rng(seed + 2).random((count, 1, 1, 1))
    return tf.data.Dataset.from_tensor_slices(
        (pictures, normal(count, 8, 8, 1, seed=seed + 1), times)
    ).batch(7)


def train(strategy, folder):
    training, validation = noised_images(36, 0), noised_images(10, 10)
    with strategy.scope():
        model = DiffusionModel()
        model.compile(
            optimizer=keras.optimizers.SGD(0.0003),
            loss=keras.losses.mean_absolute_error,
        )
        model.normalizer.adapt(training.map(lambda pictures, *_: pictures))
    history = model.fit(
        training, epochs=3, validation_data=validation, verbose=0
    ).history
    return {"history": history, "evaluate": model.evaluate(validation, verbose=0)}
