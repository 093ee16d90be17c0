"""Validation of the arguments of a dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.arguments import checked_number, multiples_near

# Means and standard deviations of ImageNet's training images: red, green and blue, from
# 0 to 255.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Checks that a value is one of several.

    Args:
        argument: The argument's name, for the error message.
        value: The value that the user passed.
        choices: The allowed values.

    Raises:
        ValueError: If it is none of them.
    """
    if value not in choices:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, choices))}. Received: "
            f"{argument}={value!r}. Pass one of them."
        )


def checked_colour(
    argument: str, value: Sequence[float], **bounds: float
) -> tuple[float, ...]:
    """Returns three numbers, for red, green and blue.

    Args:
        argument: The argument's name, for the error message.
        value: The value that the user passed.
        **bounds: Bounds of each number, as in `checked_number`.

    Raises:
        TypeError: If one of them is not a number.
        ValueError: If there are not three, or one is out of range.
    """
    if np.shape(value) != (3,):
        raise ValueError(
            f"`{argument}` must be three numbers, for red, green and blue. Received: "
            f"{argument}={value!r}. Pass, for example, ImageNet's: {IMAGENET_MEAN}."
        )
    return tuple(checked_number(argument, number, **bounds) for number in value)


def checked_floating(argument: str, value: Any) -> str:
    """Returns the name of a floating-point dtype.

    Args:
        argument: The argument's name, for the error message.
        value: The value that the user passed.

    Raises:
        ValueError: If it is not a floating-point dtype.
    """
    try:
        dtype = tf.as_dtype(value)
    except TypeError:
        dtype = tf.string
    if not dtype.is_floating:
        raise ValueError(
            f"`{argument}` must be a floating-point dtype. "
            f"Received: {argument}={value!r}. "
            f'Pass, for example, `{argument}="float32"`.'
        )
    return dtype.name


def check_batch(batch_size: int, replicas: int) -> None:
    """Checks that a global batch divides evenly among the replicas.

    Args:
        batch_size: Examples in a global batch.
        replicas: Number of replicas.

    Raises:
        ValueError: If the batch size is not a multiple of the number of replicas.
    """
    if batch_size % replicas:
        raise ValueError(
            "`batch_size` is the global batch, and must be a multiple of the number of "
            f"replicas. Received: batch_size={batch_size:,}, {replicas} replicas. "
            f"Pass, for example, {multiples_near(batch_size, replicas)}."
        )
