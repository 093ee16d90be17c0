"""A variational autoencoder: a custom train step, and no `call`."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images, normal

PUBLISHED = "keras.io/examples/generative/vae"
CHANGED = "noise comes with the data"
TOLERANCE = 1e-9

LATENT = 2


class Sampling(layers.Layer):
    def call(self, inputs):
        mean, log_var, noise = inputs
        return mean + ops.exp(0.5 * log_var) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_tracker = keras.metrics.Mean(name="total_loss")
        self.picture_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_tracker, self.picture_tracker, self.kl_tracker]

    def train_step(self, data):
        pictures, noise = data
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder([pictures, noise])
            decoded = self.decoder(z)
            errors = keras.losses.binary_crossentropy(pictures, decoded)
            picture_loss = ops.mean(ops.sum(errors, axis=(1, 2)))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            kl_loss = ops.mean(ops.sum(kl, axis=1))
            total = picture_loss + kl_loss
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        self.total_tracker.update_state(total)
        self.picture_tracker.update_state(picture_loss)
        self.kl_tracker.update_state(kl_loss)
        return {
            "loss": self.total_tracker.result(),
            "reconstruction_loss": self.picture_tracker.result(),
            "kl_loss": self.kl_tracker.result(),
        }


def train(strategy, folder):
    count = 36
    x, _ = images(count)
    dataset = tf.data.Dataset.from_tensor_slices((x, normal(count, LATENT, seed=1)))
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        noise = keras.Input((LATENT,))
        h = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(inputs)
        h = layers.Dense(8, activation="relu")(layers.Flatten()(h))
        mean = layers.Dense(LATENT, name="mean")(h)
        log_var = layers.Dense(LATENT, name="log_var")(h)
        z = Sampling()([mean, log_var, noise])
        encoder = keras.Model([inputs, noise], [mean, log_var, z], name="encoder")

        latent = keras.Input((LATENT,))
        h = layers.Dense(4 * 4 * 4, activation="relu")(latent)
        h = layers.Reshape((4, 4, 4))(h)
        h = layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(
            h
        )
        outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(h)
        decoder = keras.Model(latent, outputs, name="decoder")

        vae = VAE(encoder, decoder)
        vae.compile(optimizer=keras.optimizers.SGD(0.003))
    history = vae.fit(dataset.batch(7), epochs=3, verbose=0).history
    decoded = vae.decoder.predict(normal(5, LATENT, seed=4), verbose=0)
    return {"history": history, "decoded": decoded.mean((1, 2, 3)).tolist()}
