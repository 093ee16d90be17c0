"""A generative adversarial network: a custom train step and two optimizers."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images, normal

PUBLISHED = "keras.io/guides/custom_train_step_in_tensorflow (end-to-end GAN)"
CHANGED = "noise comes with the data"
TOLERANCE = 1e-9

LATENT = 6


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, data):
        real, d_noise, g_noise = data
        batch = ops.shape(real)[0]
        pictures = ops.concatenate([self.generator(d_noise), real], axis=0)
        labels = ops.concatenate([ops.ones((batch, 1)), ops.zeros((batch, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(pictures))
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))

        misleading = ops.zeros((batch, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(g_noise))
            g_loss = self.loss_fn(misleading, predictions)
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


def train(strategy, folder):
    count = 36
    x, _ = images(count)
    data = (x, normal(count, LATENT, seed=1), normal(count, LATENT, seed=2))
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.shuffle(64, seed=3, reshuffle_each_iteration=False).batch(7)
    with strategy.scope():
        discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.GlobalMaxPooling2D(),
                layers.Dense(1),
            ]
        )
        generator = keras.Sequential(
            [
                keras.Input((LATENT,)),
                layers.Dense(4 * 4 * 4),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 4)),
                layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ]
        )
        gan = GAN(discriminator, generator)
        gan.compile(
            d_optimizer=keras.optimizers.SGD(0.3),
            g_optimizer=keras.optimizers.SGD(0.3),
            loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = gan.fit(dataset, epochs=3, verbose=0).history
    made = generator.predict(normal(5, LATENT, seed=4), verbose=0)
    return {"history": history, "generated": made.mean((1, 2, 3)).tolist()}
