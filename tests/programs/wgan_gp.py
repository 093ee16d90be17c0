"""A Wasserstein GAN with a gradient penalty and several critic updates per step."""

import keras
import tensorflow as tf
from keras import layers

from tests.programs.made_data import images, normal

PUBLISHED = "keras.io/examples/generative/wgan_gp"
CHANGED = "noise and interpolation weights come with the data"
TOLERANCE = 1e-9

LATENT = 6


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, critic_steps=2, gp_weight=10.0):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.critic_steps = critic_steps
        self.gp_weight = gp_weight

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, real, fake, alpha):
        interpolated = real + alpha * (fake - real)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            predictions = self.discriminator(interpolated, training=True)
        gradients = gp_tape.gradient(predictions, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data):
        real, noise, alpha = data
        for i in range(self.critic_steps):
            with tf.GradientTape() as tape:
                fake = self.generator(noise[:, i], training=True)
                fake_logits = self.discriminator(fake, training=True)
                real_logits = self.discriminator(real, training=True)
                d_cost = self.d_loss_fn(real_logits, fake_logits)
                penalty = self.gradient_penalty(real, fake, alpha[:, i])
                d_loss = d_cost + penalty * self.gp_weight
            weights = self.discriminator.trainable_variables
            gradients = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            fake = self.generator(noise[:, -1], training=True)
            g_loss = self.g_loss_fn(self.discriminator(fake, training=True))
        weights = self.generator.trainable_variables
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def d_loss(real, fake):
    return tf.reduce_mean(fake) - tf.reduce_mean(real)


def g_loss(fake):
    return -tf.reduce_mean(fake)


def train(strategy, folder):
    count = 33
    x, _ = images(count)
    alpha = normal(count, 2, 1, 1, 1, seed=2)
    dataset = tf.data.Dataset.from_tensor_slices(
        (x, normal(count, 3, LATENT, seed=1), alpha)
    )
    with strategy.scope():
        discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 5, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        generator = keras.Sequential(
            [
                keras.Input((LATENT,)),
                layers.Dense(4 * 4 * 4, use_bias=False),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 4)),
                layers.UpSampling2D(2),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ]
        )
        wgan = WGAN(discriminator, generator)
        wgan.compile(
            d_optimizer=keras.optimizers.SGD(0.01),
            g_optimizer=keras.optimizers.SGD(0.01),
            d_loss_fn=d_loss,
            g_loss_fn=g_loss,
        )
    history = wgan.fit(dataset.batch(7), epochs=2, verbose=0).history
    made = generator.predict(normal(5, LATENT, seed=4), verbose=0)
    return {"history": history, "generated": made.mean((1, 2, 3)).tolist()}
