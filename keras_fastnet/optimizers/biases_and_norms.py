"""Finds what a variable is to the layer that owns it.

A Keras variable does not know its layer, and an optimizer is built from
variables alone. Its name is no help either: `kernel`, `gamma` and `bias` say
nothing about the layer, and a path is what the user made of it.
"""

import gc
from collections.abc import Iterable
from typing import Any

from keras_fastnet._keras.keras_api import keras

# SpectralNormalization is absent on purpose: it wraps a layer, and what it
# shares with that layer is the kernel.
_NORMALIZATIONS = tuple(
    getattr(keras.layers, name)
    for name in (
        "BatchNormalization",
        "GroupNormalization",
        "LayerNormalization",
        "RMSNormalization",  # Since Keras 3.9.
    )
    if hasattr(keras.layers, name)
)


def biases_and_norms(variables: Iterable[Any]) -> dict[int, str]:
    """Says which variables are biases or belong to a normalization layer.

    Every live Keras layer is looked at once, and a variable counts as a layer's
    where it is an attribute of the layer itself, not of a layer inside it. That
    takes about a tenth of a second, so ask only where the answer matters.

    Args:
        variables: Variables to look for, by identity.

    Returns:
        For each variable found, its `id` and the reason in words. Variables
        that no live layer holds as an attribute are absent.

    Example:

    >>> layer = keras.layers.EinsumDense("ab,bcd->acd", (2, 3), bias_axes="cd")
    >>> layer.build((1, 4))
    >>> tuple(layer.bias.shape)
    (2, 3)
    >>> reasons = biases_and_norms(layer.weights)
    >>> reasons[id(layer.bias)].startswith("bias of EinsumDense")
    True
    >>> id(layer.kernel) in reasons
    False
    """
    wanted = {id(variable) for variable in variables}
    reasons: dict[int, str] = {}
    for candidate in gc.get_objects():
        # `type`, since `isinstance` would run the `__class__` of lazy proxies.
        if not issubclass(type(candidate), keras.layers.Layer):
            continue
        # `vars`, since attribute access would run properties, and another
        # thread may be building the layer.
        for attribute, value in list(vars(candidate).items()):
            if id(value) not in wanted:
                continue
            if isinstance(candidate, _NORMALIZATIONS):
                reasons[id(value)] = f"in {_words(candidate)}"
            elif attribute == "bias":
                reasons.setdefault(id(value), f"bias of {_words(candidate)}")
    return reasons


def _words(layer: keras.layers.Layer) -> str:
    return f"{type(layer).__name__} '{layer.name}'"
