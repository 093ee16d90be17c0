"""Calls of `fit`, `evaluate` and `predict`, which all workers must make together."""

from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.protocols import strategy_of
from keras_fastnet._keras.wrapping import wrap


def _call(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = strategy_of(model)
    # Keras evaluates within `fit`, with arguments that have been compared.
    if strategy is None or kwargs.get("_use_cached_eval_dataset"):
        return original(model, *args, **kwargs)
    with strategy.fit_support.calling(original, model, args, kwargs):
        return original(model, *args, **kwargs)


for _name in ("fit", "evaluate", "predict"):
    wrap(
        keras.Model,
        _name,
        stock=(
            "Workers that call it with other models, data or arguments wait for each "
            "other, or train models of their own, without an error."
        ),
        until="Keras compares the calls of the workers.",
    )(_call)
