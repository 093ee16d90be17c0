"""From records to the batches that `fit` takes."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from keras_fastnet.datasets.image_ops import (
    decode_center,
    decode_random_crop,
    flip,
    pad_and_crop,
    parse,
)

# Of each example: two numbers for where to crop, one for whether to mirror.
_NUMBERS = 3
LABEL_HINT = ". Pass other `classes` or `first_label`, or correct the file."


@dataclasses.dataclass(frozen=True)
class Batches:
    """How to make batches of records.

    Attributes:
        paths: All files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.
        first_label: The smallest label.
        classes: How many labels there are.
        batch_size: Examples in a batch of one replica.
        image_size: Side of the images in pixels.
        one_hot: Whether labels become one-hot vectors.
        mean: Of each channel, subtracted.
        std: Of each channel, divided by.
        dtype: Of the images.
    """

    paths: Sequence[pathlib.Path]
    image_key: str
    label_key: str
    first_label: int
    classes: int
    batch_size: int
    image_size: int
    one_hot: bool
    mean: Sequence[float]
    std: Sequence[float]
    dtype: str

    def for_training(
        self,
        records: tf.data.Dataset,
        seed: int,
        augmentation: Literal["inception", "pad"] | None,
        padding: int,
        padding_mode: Literal["reflect", "zeros"],
    ) -> tf.data.Dataset:
        """Returns batches of augmented examples.

        Args:
            records: A dataset of file, number in it, and record.
            seed: What the augmentation follows from.
            augmentation: `"inception"`, `"pad"` or `None`.
            padding: For `"pad"`, pixels on each side.
            padding_mode: For `"pad"`, what to pad with.
        """
        # Numbers of its own for every example, anew in every epoch. Random operations
        # within `map` would begin anew where an interrupted epoch goes on.
        random = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
        random = random.batch(_NUMBERS, drop_remainder=True)

        def decode(encoded: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            if augmentation == "inception":
                return decode_random_crop(encoded, self.image_size, numbers[:2])
            return decode_center(encoded, self.image_size, 1.0)

        def augment(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            if augmentation is None:
                return images
            if augmentation == "pad":
                places = numbers[:, :2]
                images = pad_and_crop(images, places, padding, padding_mode)
            return flip(images, numbers[:, 2])

        return self._of(tf.data.Dataset.zip((records, random)), decode, augment)

    def for_evaluation(
        self, records: tf.data.Dataset, crop_fraction: float
    ) -> tf.data.Dataset:
        """Returns batches of central crops.

        Args:
            records: A dataset of file, number in it, and record.
            crop_fraction: Side of the crop, as a part of the image's shorter side.
        """
        return self._of(
            records.map(lambda *record: (record, ())),
            lambda encoded, _: decode_center(encoded, self.image_size, crop_fraction),
            lambda images, _: images,
        )

    def _of(
        self,
        records: tf.data.Dataset,
        decode: Callable[[tf.Tensor, Any], tf.Tensor],
        augment: Callable[[tf.Tensor, Any], tf.Tensor],
    ) -> tf.data.Dataset:
        """Decodes, batches and augments a dataset of records and random numbers."""

        def example(record: Any, random: Any) -> Any:
            file, number, content = record
            encoded, label = parse(content, self.image_key, self.label_key)
            return decode(encoded, random), label, file, number, random

        def batch(images: Any, labels: Any, files: Any, numbers: Any, random: Any):
            images = augment(self._normalized(images), random)
            images = tf.cast(images, self.dtype)
            return images, self._checked_labels(labels, files, numbers)

        # Batches are augmented whole: a call for each image costs more than the work.
        return (
            records.map(example, tf.data.AUTOTUNE, deterministic=True)
            .batch(self.batch_size)
            .map(batch, tf.data.AUTOTUNE, deterministic=True)
        )

    def _normalized(self, images: tf.Tensor) -> tf.Tensor:
        # Known sizes, for Keras to build a model by.
        size = self.image_size
        images = tf.ensure_shape(images, (None, size, size, 3))
        return (images - tf.constant(self.mean)) / tf.constant(self.std)

    def _checked_labels(
        self, stored: tf.Tensor, files: tf.Tensor, numbers: tf.Tensor
    ) -> tf.Tensor:
        labels = stored - self.first_label
        wrong = (labels < 0) | (labels >= self.classes)
        first = tf.argmax(wrong)
        names = tf.constant([str(path) for path in self.paths])
        message = tf.strings.join(
            [
                label_rule(self.first_label, self.classes),
                ". Received: ",
                tf.as_string(stored[first]),
                " in record ",
                tf.as_string(numbers[first]),
                " (from 0) of ",
                names[files[first]],
                LABEL_HINT,
            ]
        )
        check = tf.debugging.Assert(~tf.reduce_any(wrong), [message])
        with tf.control_dependencies([check]):
            labels = tf.cast(labels, tf.int32)
        return tf.one_hot(labels, self.classes) if self.one_hot else labels


def label_rule(first_label: int, classes: int) -> str:
    """Returns the beginning of the errors about labels.

    Args:
        first_label: The smallest label.
        classes: How many there are.
    """
    return (
        f"With classes={classes} and first_label={first_label}, labels must be from "
        f"{first_label} to {first_label + classes - 1}"
    )
