"""A vector-quantized autoencoder: a layer adds losses; a custom train step."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/generative/vq_vae"
CHANGED = ""
TOLERANCE = 1e-9

LATENT, CODES = 4, 8


class VectorQuantizer(layers.Layer):
    def __init__(self, codes, width, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.codes, self.width, self.beta = codes, width, beta
        self.book = self.add_weight(
            shape=(width, codes), initializer="random_uniform", name="book"
        )

    def call(self, x):
        shape = ops.shape(x)
        flat = ops.reshape(x, [-1, self.width])
        distances = (
            ops.sum(flat**2, axis=1, keepdims=True)
            + ops.sum(self.book**2, axis=0)
            - 2 * ops.matmul(flat, self.book)
        )
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.codes)
        quantized = ops.matmul(chosen, ops.transpose(self.book))
        quantized = ops.reshape(quantized, shape)
        commitment = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        codebook = ops.mean((quantized - ops.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment + codebook)
        return x + ops.stop_gradient(quantized - x)


def autoencoder():
    inputs = keras.Input((8, 8, 1))
    h = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(inputs)
    encoder = keras.Model(inputs, layers.Conv2D(LATENT, 1, padding="same")(h))
    latent = keras.Input((4, 4, LATENT))
    h = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(
        latent
    )
    decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, padding="same")(h))
    quantizer = VectorQuantizer(CODES, LATENT, name="quantizer")
    pictures = keras.Input((8, 8, 1))
    return keras.Model(pictures, decoder(quantizer(encoder(pictures))), name="vq_vae")


class VQVAETrainer(keras.models.Model):
    def __init__(self, train_variance, **kwargs):
        super().__init__(**kwargs)
        self.train_variance = train_variance
        self.vqvae = autoencoder()
        self.total_tracker = keras.metrics.Mean(name="total_loss")
        self.picture_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.vq_tracker = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self):
        return [self.total_tracker, self.picture_tracker, self.vq_tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            decoded = self.vqvae(x)
            picture_loss = ops.mean((x - decoded) ** 2) / self.train_variance
            total = picture_loss + sum(self.vqvae.losses)
        weights = self.vqvae.trainable_variables
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.total_tracker.update_state(total)
        self.picture_tracker.update_state(picture_loss)
        self.vq_tracker.update_state(sum(self.vqvae.losses))
        return {
            "loss": self.total_tracker.result(),
            "reconstruction_loss": self.picture_tracker.result(),
            "vqvae_loss": self.vq_tracker.result(),
        }


def train(strategy, folder):
    x, _ = images(36)
    with strategy.scope():
        trainer = VQVAETrainer(x.var())
        trainer.compile(optimizer=keras.optimizers.SGD(0.02))
    history = trainer.fit(x, epochs=3, batch_size=7, shuffle=False, verbose=0).history
    decoded = trainer.vqvae.predict(x[:5], verbose=0)
    return {"history": history, "decoded": decoded.mean((1, 2, 3)).tolist()}
