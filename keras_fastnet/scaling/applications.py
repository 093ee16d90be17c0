"""Keras's applications: their names and numbers of parameters."""

import contextlib
import difflib
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from keras_fastnet.errors import UsageError


def application_names() -> list[str]:
    """Returns the names in `keras.applications`, without importing Keras here.

    Another process imports it: TensorFlow prints a lot, and would stay in memory.
    """
    program = (
        "from keras_fastnet._keras.keras_api import keras\n"
        "print(*dir(keras.applications))"
    )
    command = [sys.executable, "-c", program]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    return listing.stdout.split()


def application_named(name: str, names: Iterable[str], advice: str = "") -> str:
    """Returns an application's name in Keras's spelling.

    Args:
        name: The name, in upper or lower case.
        names: The names in `keras.applications`.
        advice: A sentence that the error ends with. Defaults to `""`.

    Raises:
        UsageError: If there is no such application.
    """
    models = {each.lower(): each for each in names if each[0].isupper()}
    if name.lower() not in models:
        near = difflib.get_close_matches(name.lower(), models, n=4, cutoff=0.4)
        close = ", ".join(models[each] for each in near) or "none"
        raise UsageError(
            "--model must be one of Keras's applications. "
            f"Received: {name}. Close to it: {close}. {advice}".rstrip()
        )
    return models[name.lower()]


def count_parameters(name: str) -> tuple[str, int]:
    """Returns an application's name in Keras's spelling, and its trainable parameters.

    Args:
        name: The name, in upper or lower case.

    Raises:
        UsageError: If there is no such application.
    """
    found, model = built(name)
    return found, sum(math.prod(weight.shape) for weight in model.trainable_weights)


def built(name: str, precision: str | None = None) -> tuple[str, Any]:
    """Returns an application's name in Keras's spelling, and its model.

    Args:
        name: The name, in upper or lower case.
        precision: The dtype policy. Defaults to `None`: Keras's default.

    Raises:
        UsageError: If there is no such application.
    """
    with _silent_stderr():
        from keras_fastnet._keras.keras_api import keras

    found = application_named(
        name, dir(keras.applications), "For other models, give --parameters."
    )
    if precision is not None:
        keras.mixed_precision.set_global_policy(precision)
    with _silent_stderr():
        return found, getattr(keras.applications, found)(weights=None)


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hides messages about GPUs that TensorFlow's C++ prints at any log level."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
