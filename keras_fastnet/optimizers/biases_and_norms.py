"""Finds biases and the variables of normalization layers.

A Keras variable has no reference to its layer, and an optimizer is built from variables
alone. Names do not tell either: `kernel`, `gamma` and `bias` say nothing about the
layer, and users choose the paths.
"""

import gc
from collections.abc import Iterable
from typing import Any

from keras_fastnet._keras.keras_api import keras

# SpectralNormalization is absent on purpose: it wraps a layer and shares that layer's
# kernel.
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
    """Returns which variables are biases or belong to a normalization layer.

    Visits every live Keras layer once. A variable belongs to the layer that has it as
    an attribute, not to layers around it. A call takes about a tenth of a second, so
    pass only variables for which the answer matters.

    Args:
        variables: Variables to look for, by identity.

    Returns:
        The reason, by `id` of each variable found. Variables that are not an attribute
        of any live layer are absent.

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
        # `type`, since `isinstance` would evaluate `__class__` of lazy proxies.
        if not issubclass(type(candidate), keras.layers.Layer):
            continue
        # `vars`, since attribute access would run properties; a copy, since another
        # thread may be building the layer.
        for attribute, value in list(vars(candidate).items()):
            if id(value) not in wanted:
                continue
            if isinstance(candidate, _NORMALIZATIONS):
                reasons[id(value)] = f"in {_description(candidate)}"
            elif attribute == "bias":
                reasons.setdefault(id(value), f"bias of {_description(candidate)}")
    return reasons


def _description(layer: keras.layers.Layer) -> str:
    return f"{type(layer).__name__} '{layer.name}'"
