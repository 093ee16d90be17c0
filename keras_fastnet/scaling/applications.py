"""Keras's applications, by name."""

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator
from typing import Any

from keras_fastnet.errors import UsageError


def application(
    name: str, precision: str | None = None, **arguments: Any
) -> tuple[str, Any]:
    """Returns an application's name in Keras's spelling, and a model without weights.

    Args:
        name: The name, in upper or lower case.
        precision: The dtype policy, which becomes the default. Defaults to `None`: the
            default as it is.
        **arguments: Further arguments of the application.

    Raises:
        UsageError: If there is no such application, or it does not take the arguments.
    """
    with _silent_stderr():
        from keras_fastnet._keras.keras_api import keras

    names = [each for each in dir(keras.applications) if each[0].isupper()]
    models = {each.lower(): each for each in names}
    if name.lower() not in models:
        near = difflib.get_close_matches(name.lower(), models, n=4, cutoff=0.4)
        raise UsageError(
            "--model must be one of Keras's applications. Received: "
            f"{name}. Close to it: {', '.join(models[n] for n in near) or 'none'}."
        )
    found = models[name.lower()]
    if precision is not None:
        keras.mixed_precision.set_global_policy(precision)
    try:
        with _silent_stderr():
            return found, getattr(keras.applications, found)(weights=None, **arguments)
    except ValueError as error:
        raise UsageError(
            f"The model must take its input. Received: --model {found} ({error}). "
            "Choose a larger --image-size, or another model."
        ) from error


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
