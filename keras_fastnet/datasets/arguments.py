"""Validation of the arguments of a dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.arguments import checked_number, multiples_near

# Of ImageNet's training images, in red, green and blue, from 0 to 255.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Checks that a value is one of a few.

    Args:
        argument: The name to use in an error.
        value: What the user gave for it.
        choices: What is allowed.

    Raises:
        ValueError: It is none of them.
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
        argument: The name to use in an error.
        value: What the user gave for it.
        **bounds: Of each number, as in `checked_number`.

    Raises:
        TypeError: They are no numbers.
        ValueError: They are not three, or out of range.
    """
    if np.shape(value) != (3,):
        raise ValueError(
            f"`{argument}` must be three numbers, for red, green and blue. Received: "
            f"{argument}={value!r}. Pass, for example, ImageNet's: {IMAGENET_MEAN}."
        )
    return tuple(checked_number(argument, number, **bounds) for number in value)


def checked_floating(argument: str, value: Any) -> str:
    """Returns the name of a floating type.

    Args:
        argument: The name to use in an error.
        value: What the user gave for it.

    Raises:
        ValueError: It is no floating type.
    """
    try:
        dtype = tf.as_dtype(value)
    except TypeError:
        dtype = tf.string
    if not dtype.is_floating:
        raise ValueError(
            f"`{argument}` must be a floating type. Received: {argument}={value!r}. "
            f'Pass, for example, `{argument}="float32"`.'
        )
    return dtype.name


def check_batch(batch_size: int, replicas: int) -> None:
    """Checks that a batch can be shared.

    Args:
        batch_size: Examples in a batch of all replicas.
        replicas: How many replicas there are.

    Raises:
        ValueError: The batch is no multiple of the replicas.
    """
    if batch_size % replicas:
        raise ValueError(
            "`batch_size` must be a multiple of the replicas: it is the batch of them "
            f"all. Received: batch_size={batch_size:,}, {replicas} replicas. "
            f"Near it: {multiples_near(batch_size, replicas)}."
        )
