"""What XLA compiles of the steps of several replicas.

Collectives that leave the device cannot stand within XLA's code. So each replica's
forward pass is compiled by itself, the backward pass with it, and the update.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from keras_fastnet._keras.protocols import compiled, compiles_itself


@contextlib.contextmanager
def traced_for_strategy(model: keras.Model) -> Iterator[None]:
    """Has Keras make a model's functions so that the strategy can compile them.

    Args:
        model: A compiled model.
    """
    asked, plain = model.jit_compile, tf.function

    def traced_for_each_size(function: Any = None, **options: Any) -> Any:
        return plain(function, **{**options, "reduce_retracing": False})

    if compiles_itself(model):
        model._jit_compile = False
        if model.distribute_strategy.compiles_all:
            # Keras asks for traces of unknown shape after the first.
            tf.function = traced_for_each_size
    try:
        yield
    finally:
        model._jit_compile = asked
        tf.function = plain


@contextlib.contextmanager
def compiled_forward(model: keras.Model) -> Iterator[None]:
    """Has XLA compile a model's forward pass, for the time of a step's tracing.

    Args:
        model: The model.

    Raises:
        ValueError: A layer of it communicates with other replicas.
    """
    layers = list(model._flatten_layers())
    _refuse_synchronized(layers)
    # Of the class: another replica's tracing may have paused with its own in place.
    call = functools.partial(type(model).call, model)

    def compiled_call(*args: Any, **kwargs: Any) -> Any:
        if any(get_keras_mask(x) is not None for x in _tensors((args, kwargs))):
            return call(*args, **kwargs)
        known = [len(layer._losses) for layer in layers]

        # What the pass leaves beside its result has to cross the border with it.
        def forward() -> Any:
            outputs = call(*args, **kwargs)
            masks = [get_keras_mask(output) for output in _tensors(outputs)]
            losses = [
                layer._losses[count:]
                for layer, count in zip(layers, known, strict=True)
            ]
            return outputs, masks, losses

        outputs, masks, losses = compiled(forward)()
        for layer, count, own in zip(layers, known, losses, strict=True):
            layer._losses[count:] = own
        for output, mask in zip(_tensors(outputs), masks, strict=True):
            if mask is not None:
                set_keras_mask(output, mask)
        return outputs

    # Past Keras, which tracks what is set.
    vars(model)["call"] = compiled_call
    try:
        yield
    finally:
        vars(model).pop("call", None)


def _tensors(structure: Any) -> list[Any]:
    return [x for x in keras.tree.flatten(structure) if isinstance(x, tf.Tensor)]


def _refuse_synchronized(layers: list[keras.Layer]) -> None:
    for layer in layers:
        if getattr(layer, "synchronized", False):
            raise ValueError(
                "XLA cannot compile a forward pass that communicates with other "
                f"replicas. Received: `jit_compile=True` with {layer.name}, whose "
                "statistics are `synchronized=True`. Leave one of the two out."
            )
