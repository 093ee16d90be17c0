"""Reading text in images: an endpoint layer adds a CTC loss for each example."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/vision/captcha_ocr"
CHANGED = "no dropout"
# TensorFlow computes CTC in single precision.
TOLERANCE = 1e-6

CHARACTERS = 4
LENGTH = 2


class CTCLayer(layers.Layer):
    def call(self, y_true, y_pred):
        batch = ops.shape(y_true)[0]
        frames = ops.full((batch,), ops.shape(y_pred)[1], dtype="int32")
        letters = ops.full((batch,), ops.shape(y_true)[1], dtype="int32")
        logits = ops.log(y_pred + keras.config.epsilon())
        loss = ops.ctc_loss(y_true, logits, letters, frames, mask_index=0)
        # One value per example: Keras sums them.
        self.add_loss(ops.expand_dims(loss, 1))
        return y_pred


def captchas(count, seed):
    parts = [images(count, classes=4, seed=seed + i) for i in range(LENGTH)]
    pictures = np.concatenate([p for p, _ in parts], axis=2)
    labels = np.stack([y + 1 for _, y in parts], axis=1)
    return tf.data.Dataset.from_tensor_slices(
        {"image": pictures, "label": labels.astype("int32")}
    ).batch(7)


def train(strategy, folder):
    dataset, validation = captchas(33, 0), captchas(10, 10)
    with strategy.scope():
        image = keras.Input((8, 8 * LENGTH, 1), name="image")
        label = keras.Input((LENGTH,), name="label", dtype="int32")
        h = layers.Conv2D(4, 3, activation="relu", padding="same")(image)
        h = layers.MaxPooling2D((2, 2))(h)
        h = layers.Permute((2, 1, 3))(h)
        h = layers.Reshape((4 * LENGTH, 16))(h)
        h = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(h)
        h = layers.Dense(CHARACTERS + 1, activation="softmax", name="letters")(h)
        model = keras.Model([image, label], CTCLayer(name="ctc")(label, h))
        model.compile(optimizer=keras.optimizers.SGD(0.02))
    history = model.fit(
        dataset, validation_data=validation, epochs=3, verbose=0
    ).history
    reader = keras.Model(model.inputs[0], model.get_layer("letters").output)
    read = reader.predict(captchas(5, 20).map(lambda d: d["image"]), verbose=0)
    return {
        "history": history,
        "read": read.max(-1).mean(1).tolist(),
        "evaluate": model.evaluate(validation, verbose=0),
    }
