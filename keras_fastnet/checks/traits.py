"""Names a model's random layers and custom parts, for the notes of a check."""

from typing import Any

from keras_fastnet._keras.keras_api import keras

_KERAS = ("keras", "keras_fastnet")
_STEPS = ("train_step", "test_step", "compute_loss")


def random_layers(model: keras.Model) -> list[str]:
    """Returns the classes of the layers that draw random numbers.

    Args:
        model: The model.
    """
    return sorted(
        {
            type(layer).__name__
            for layer in model._flatten_layers()
            if any(
                isinstance(part, keras.random.SeedGenerator)
                for part in vars(layer).values()
            )
            and getattr(layer, "rate", None) != 0.0
        }
    )


def custom_parts(model: keras.Model) -> list[str]:
    """Returns the parts of a model that neither Keras nor keras_fastnet wrote.

    Args:
        model: The compiled model.
    """
    steps = [
        f"`{name}` of {type(model).__name__}"
        for name in _STEPS
        if not _is_of_keras(next(c for c in type(model).__mro__ if name in vars(c)))
    ]
    layers = {
        f"layer {type(layer).__name__}"
        for layer in model._flatten_layers(include_self=False)
        if not _is_of_keras(type(layer)) or isinstance(layer, keras.layers.Lambda)
    }
    found = [*steps, *sorted(layers)]
    for loss in keras.tree.flatten(model.loss):
        if loss is not None and not isinstance(loss, str):
            named = loss if hasattr(loss, "__name__") else type(loss)
            if not _is_of_keras(named):
                found.append(f"loss {named.__name__}")
    if not _is_of_keras(type(model.optimizer)):
        found.append(f"optimizer {type(model.optimizer).__name__}")
    return found


def _is_of_keras(part: Any) -> bool:
    return part.__module__.partition(".")[0] in _KERAS
