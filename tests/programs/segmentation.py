"""A small U-Net with batch normalization and a Dice loss over the batch."""

import keras
import numpy as np
from keras import layers

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/vision/oxford_pets_image_segmentation"
CHANGED = "a Dice loss"
# Batch normalization and Dice each use a replica's own examples.
TOLERANCE = 0.02


def network():
    inputs = keras.Input((8, 8, 1))
    h = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    h = layers.BatchNormalization()(h)
    h = layers.Activation("relu")(h)
    residual = h
    h = layers.SeparableConv2D(4, 3, padding="same")(h)
    h = layers.BatchNormalization()(h)
    h = layers.add([layers.Activation("relu")(h), residual])
    h = layers.UpSampling2D(2)(h)
    return keras.Model(
        inputs, layers.Conv2D(2, 3, activation="softmax", padding="same")(h)
    )


class Pictures(keras.utils.PyDataset):
    def __init__(self, batch_size, count, seed, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.x, _ = images(count, seed=seed)
        self.y = np.concatenate([self.x < 0.5, self.x >= 0.5], -1).astype("float64")

    def __len__(self):
        return -(-len(self.x) // self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[rows], self.y[rows]


def train(strategy, folder):
    training, validation = Pictures(15, 40, 0), Pictures(7, 10, 1)
    with strategy.scope():
        model = network()
        model.compile(optimizer=keras.optimizers.SGD(0.3), loss=keras.losses.Dice())
    history = model.fit(
        training, epochs=3, validation_data=validation, shuffle=False, verbose=0
    ).history
    return {"history": history, "evaluate": model.evaluate(validation, verbose=0)}
