"""Makes batches of images and labels from records."""

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

# Random numbers for each example: two for the crop, one for mirroring.
_NUMBERS = 3
LABEL_HINT = ". Pass other `classes` or `first_label`, or correct the file."


@dataclasses.dataclass(frozen=True)
class Batches:
    """Settings for making batches from records.

    Attributes:
        paths: All files.
        image_key: The feature that holds an encoded image.
        label_key: The feature that holds an integer.
        first_label: The smallest label.
        classes: Number of labels.
        batch_size: Per-replica batch size.
        image_size: Side of the images in pixels.
        one_hot: Whether labels become one-hot vectors.
        mean: Mean of each channel, which is subtracted.
        std: Standard deviation of each channel, by which images are divided.
        dtype: Dtype of the images.
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
            records: A dataset of file, number in the file, and record.
            seed: Seed of the augmentation.
            augmentation: `"inception"`, `"pad"` or `None`.
            padding: For `"pad"`, pixels on each side.
            padding_mode: For `"pad"`, `"reflect"` or `"zeros"`.
        """
        # Other numbers for every example and epoch. Random operations within `map`
        # would restart when an interrupted epoch is resumed.
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
            records: A dataset of file, number in the file, and record.
            crop_fraction: Side of the crop, as a fraction of the image's shorter side.
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

        # Whole batches are augmented: a call for each image would cost more than the
        # work.
        return (
            records.map(example, tf.data.AUTOTUNE, deterministic=True)
            .batch(self.batch_size)
            .map(batch, tf.data.AUTOTUNE, deterministic=True)
        )

    def _normalized(self, images: tf.Tensor) -> tf.Tensor:
        # A static shape, which Keras needs to build a model.
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
    """Returns the first words of errors about labels.

    Args:
        first_label: The smallest label.
        classes: Number of labels.
    """
    return (
        f"With classes={classes} and first_label={first_label}, labels must be from "
        f"{first_label} to {first_label + classes - 1}"
    )
