"""ResNet-50, its data and its clock, for the workers of Keras on any backend."""

import time

import keras
import numpy as np


class StepTimes(keras.callbacks.Callback):
    """The end of each step by `time.monotonic`, in seconds."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.monotonic())


def keras_resnet50(size):
    shape = (size, size, 3)
    if keras.config.image_data_format() == "channels_first":
        shape = (3, size, size)
    return keras.applications.ResNet50(
        weights=None, input_shape=shape, classifier_activation=None
    )


def compiled_resnet50(size):
    model = keras_resnet50(size)
    model.compile(
        optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def global_batches(examples, size):
    """Yields the same batch forever, so that no time is spent on data."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = rng.standard_normal((examples, size, size, 3), dtype="float32")
    labels = rng.integers(0, 1000, examples)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def parameters(model):
    return sum(int(np.prod(w.shape)) for w in model.trainable_weights)
