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
    found = [
        f"`{name}` of {type(model).__name__}"
        for name in _STEPS
        if _is_custom(next(kind for kind in type(model).__mro__ if name in vars(kind)))
    ]
    for layer in model._flatten_layers(include_self=False):
        if _is_custom(type(layer)) or isinstance(layer, keras.layers.Lambda):
            found.append(f"layer {type(layer).__name__}")
    for loss in keras.tree.flatten(model.loss):
        kind = loss if hasattr(loss, "__name__") else type(loss)
        if loss is not None and not isinstance(loss, str) and _is_custom(kind):
            found.append(f"loss {kind.__name__}")
    if _is_custom(type(model.optimizer)):
        found.append(f"optimizer {type(model.optimizer).__name__}")
    return list(dict.fromkeys(found))


def _is_custom(part: Any) -> bool:
    return part.__module__.partition(".")[0] not in _KERAS
