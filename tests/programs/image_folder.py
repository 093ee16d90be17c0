"""Images from folders; a frozen base, then fine-tuning after a second `compile`."""

import pathlib
import tempfile

import keras
from keras import layers

from tests.programs.made_data import images

PUBLISHED = "keras.io/guides/transfer_learning, with image_dataset_from_directory"
CHANGED = "synchronized batch normalization; no shuffling, no augmentation, no dropout"
TOLERANCE = 1e-9


def write(folder, count, seed):
    pictures, labels = images(count, seed=seed)
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        place = folder / f"class_{label}"
        place.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(place / f"{i:02}.png", picture)


def train(strategy, folder):
    options = {
        "labels": "inferred",
        "color_mode": "grayscale",
        "image_size": (8, 8),
        "batch_size": 7,
        "shuffle": False,
        "verbose": False,
    }
    with tempfile.TemporaryDirectory() as data:
        for subset, count, seed in (("train", 33, 0), ("validation", 10, 1)):
            write(pathlib.Path(data, subset), count, seed)
        training, validation = (
            keras.utils.image_dataset_from_directory(
                pathlib.Path(data, subset), **options
            )
            for subset in ("train", "validation")
        )
        training = training.cache().prefetch(2)
        with strategy.scope():
            base = keras.Sequential(
                [
                    keras.Input((8, 8, 1)),
                    layers.Conv2D(4, 3, padding="same", activation="relu"),
                    layers.BatchNormalization(synchronized=True),
                    layers.AveragePooling2D(2),
                ]
            )
            base.trainable = False
            inputs = keras.Input((8, 8, 1))
            h = layers.Rescaling(scale=1 / 127.5, offset=-1)(inputs)
            h = base(h, training=False)
            model = keras.Model(inputs, layers.Dense(4)(layers.Flatten()(h)))
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        frozen = model.fit(
            training, epochs=2, validation_data=validation, verbose=0
        ).history
        base.trainable = True
        model.compile(
            optimizer=keras.optimizers.SGD(0.005),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        tuned = model.fit(
            training, epochs=2, validation_data=validation, verbose=0
        ).history
        evaluated = model.evaluate(validation, verbose=0)
    return {"frozen": frozen, "fine-tuned": tuned, "evaluate": evaluated}
