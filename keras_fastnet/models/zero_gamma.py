"""Initializes residual blocks as the identity."""

from typing import Any

import numpy as np

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras


def zero_gamma(model: keras.Model) -> list[str]:
    """Sets gamma to zero in the last normalization of each residual block.

    Each block then starts as the identity, which eases the start of large-batch
    training: the error at batch 8,192 fell from 24.11 % to 23.74 % (Goyal et al. 2017,
    arXiv 1706.02677, section 5.1 and table 2). Call it before training, in the
    strategy's scope.

    Args:
        model: A functional model with residual blocks, such as
            `keras.applications.ResNet50(weights=None)`.

    Returns:
        The names of the layers that were changed.

    Raises:
        ValueError: If no block has a `BatchNormalization` right before its `Add`.

    Example:

    ```python
    model = keras.applications.ResNet50(weights=None)
    zero_gamma(model)
    ```
    """
    normalizations = last_normalizations(model)
    if not normalizations:
        raise ValueError(
            "`zero_gamma` needs residual blocks that end with a `BatchNormalization` "
            f"with gamma before an `Add`. Received: model {model.name!r} without one. "
            "Leave it out for this model."
        )
    for layer in normalizations:
        layer.gamma.assign(np.zeros(layer.gamma.shape))
    return [layer.name for layer in normalizations]


def zero_gamma_if_untrained(model: keras.Model) -> int:
    """Returns in how many residual blocks it has set gamma to zero.

    Args:
        model: A model. Nothing is changed if a gamma is not the initial one.
    """
    gammas = [values.to_numpy(layer.gamma) for layer in last_normalizations(model)]
    if gammas and all((gamma == 1).all() for gamma in gammas):
        return len(zero_gamma(model))
    return 0


def last_normalizations(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the last normalization of each residual block, in nested models too.

    Args:
        model: A model; only functional ones have blocks that can be found.
    """
    found = []
    for layer in model.layers:
        if hasattr(layer, "layers"):
            found += last_normalizations(layer)
    if not any(isinstance(layer, keras.layers.Add) for layer in model.layers):
        return found
    inputs = _inputs_by_layer(model)
    for layer in model.layers:
        if not isinstance(layer, keras.layers.Add) or layer.name not in inputs:
            continue
        ends = [
            name
            for name in inputs[layer.name]
            if isinstance(model.get_layer(name), keras.layers.BatchNormalization)
            and model.get_layer(name).gamma is not None
        ]
        if not ends:
            continue
        # If the shortcut ends with a normalization too, it is the shorter branch.
        shared = set.intersection(
            *(_ancestors(name, inputs) for name in inputs[layer.name])
        )
        last = max(ends, key=lambda name: len(_ancestors(name, inputs) - shared))
        found.append(model.get_layer(last))
    return found


def _inputs_by_layer(model: keras.Model) -> dict[str, list[str]]:
    """Returns the names of each layer's input layers; nothing without a graph."""
    try:
        layers = model.get_config()["layers"]
    except (KeyError, NotImplementedError):
        return {}
    return {
        layer["name"]: list(dict.fromkeys(_names(layer["inbound_nodes"])))
        for layer in layers
        if "inbound_nodes" in layer
    }


def _names(item: Any) -> list[str]:
    """Returns the layers named in a configuration, as [layer, node, tensor]."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        if [type(part) for part in item[:3]] == [str, int, int]:
            return [item[0]]
        return [name for part in item for name in _names(part)]
    return []


def _ancestors(name: str, inputs: dict[str, list[str]]) -> set[str]:
    """Returns a layer and all layers before it."""
    found, waiting = set(), [name]
    while waiting:
        last = waiting.pop()
        if last not in found:
            found.add(last)
            waiting += inputs[last]
    return found
