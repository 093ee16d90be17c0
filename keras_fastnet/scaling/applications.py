"""Keras's applications, by name."""

import difflib
from collections.abc import Iterable

from keras_fastnet.errors import UsageError


def application_named(name: str, names: Iterable[str], instead: str = "") -> str:
    """Returns how Keras writes an application's name.

    Args:
        name: As the user wrote it, in upper or lower case.
        names: What `keras.applications` has.
        instead: What else the user can do, a sentence. Defaults to nothing.

    Raises:
        UsageError: There is none of that name.
    """
    models = {each.lower(): each for each in names if each[0].isupper()}
    if name.lower() not in models:
        near = difflib.get_close_matches(name.lower(), models, n=4, cutoff=0.4)
        close = ", ".join(models[each] for each in near) or "none"
        raise UsageError(
            "--model must be one of Keras's applications. "
            f"Received: {name}. Close to it: {close}. {instead}".rstrip()
        )
    return models[name.lower()]
