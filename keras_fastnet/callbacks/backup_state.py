"""What a backup holds beside the numbers of a model, and whether it fits one."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_fastnet._keras.chosen import values
from keras_fastnet._keras.keras_api import keras

# What Keras's callbacks count, and compare with.
_SEEN = ("best", "best_epoch", "wait", "cooldown_counter", "stopped_epoch")
_STATEFUL = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)


def stateful(callbacks: Sequence[Any]) -> list[keras.callbacks.Callback]:
    """Returns callbacks of Keras's that decide by what they have seen.

    Args:
        callbacks: All callbacks of a training.
    """
    return [callback for callback in callbacks if isinstance(callback, _STATEFUL)]


def seen(callback: keras.callbacks.Callback) -> dict[str, float | None]:
    """Returns what a callback has seen, without its settings.

    Args:
        callback: A result of `stateful`.
    """
    state = {name: vars(callback)[name] for name in _SEEN if name in vars(callback)}
    return {n: None if v is None else float(v) for n, v in state.items()}


def check_same(
    variables: dict[str, Any],
    arrays: dict[str, np.ndarray],
    folder: pathlib.Path,
) -> None:
    """Refuses a backup of another model or optimizer.

    Args:
        variables: The model's state, by name.
        arrays: The backup's.
        folder: Where it lies.

    Raises:
        ValueError: Names or shapes differ.
    """
    mine = {name: (values.path(v), tuple(v.shape)) for name, v in variables.items()}
    theirs = {name: tuple(array.shape) for name, array in arrays.items()}
    for name in sorted({*mine, *theirs}):
        path, shape = mine.get(name, ("nothing", None))
        if shape != theirs.get(name):
            raise ValueError(
                "A backup goes on with the same model and optimizer. Received: "
                f"{path} of shape {shape}, where {folder} has the shape "
                f"{theirs.get(name)}. Train the same, or use another `backup_dir`."
            )
