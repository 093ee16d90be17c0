"""Augmentation of whole batches: pure functions of random numbers."""

from typing import Literal

import tensorflow as tf


def flip(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Mirrors images whose number is odd, left to right.

    Args:
        images: `(batch, height, width, channels)`.
        numbers: Random integers, `(batch,)`.

    Returns:
        The same shape.
    """
    odd = numbers[:, None, None, None] % 2 == 1
    return tf.where(odd, tf.reverse(images, axis=[2]), images)


def pad_and_crop(
    images: tf.Tensor,
    numbers: tf.Tensor,
    padding: int,
    mode: Literal["reflect", "zeros"],
) -> tf.Tensor:
    """Pads images on all sides, and crops them to their size at random places.

    He et al. 2015 (arXiv 1512.03385), section 4.2, with 4 zeros around normalized
    images.

    Args:
        images: `(batch, size, size, channels)`.
        numbers: Random integers from 0, `(batch, 2)`: for the row and the column.
        padding: Pixels on each side.
        mode: What to pad with.

    Returns:
        The same shape.
    """
    size = images.shape[1]
    sides = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
    kind = "REFLECT" if mode == "reflect" else "CONSTANT"
    padded = tf.pad(images, sides, kind)
    first = numbers % (2 * padding + 1)
    pixels = first[:, :, None] + tf.range(size, dtype=numbers.dtype)
    rows = tf.gather(padded, pixels[:, 0], axis=1, batch_dims=1)
    return tf.gather(rows, pixels[:, 1], axis=2, batch_dims=1)
