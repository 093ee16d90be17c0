"""Keras's applications, by name."""

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator
from typing import Any

from keras_fastnet.errors import UsageError


def application(name: str, precision: str) -> tuple[str, Any]:
    """Returns an application's name in Keras's spelling, and a model without weights.

    Args:
        name: The name, in upper or lower case.
        precision: The dtype policy, which becomes the default.

    Raises:
        UsageError: If there is no such application.
    """
    with _silent_stderr():
        from keras_fastnet._keras.keras_api import keras

        names = [each for each in dir(keras.applications) if each[0].isupper()]
        models = {each.lower(): each for each in names}
        if name.lower() in models:
            found = models[name.lower()]
            keras.mixed_precision.set_global_policy(precision)
            return found, getattr(keras.applications, found)(weights=None)
    near = difflib.get_close_matches(name.lower(), models, n=4, cutoff=0.4)
    raise UsageError(
        "--model must be one of Keras's applications. Received: "
        f"{name}. Close to it: {', '.join(models[n] for n in near) or 'none'}."
    )


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
