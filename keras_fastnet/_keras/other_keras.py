"""Errors for models and optimizers of another Keras than the package uses."""

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from keras_fastnet._keras.keras_api import keras, keras_2_is_asked_for
from keras_fastnet._keras.wrapping import unwrapped

_PACKAGES = ("keras", "tf_keras")
_OTHER = next(name for name in _PACKAGES if name != keras.__name__)


def what_to_do() -> str:
    """Returns the end of an error: how to use one Keras only."""
    change = "Unset" if keras_2_is_asked_for() else "Set"
    return (
        f"keras_fastnet uses {keras.__name__} {keras.__version__} in this process, as "
        "TensorFlow does. Make the model with it, as `keras_fastnet.keras`, or use "
        f"{_OTHER} for everything: {change} the environment variable "
        "TF_USE_LEGACY_KERAS=1 before the program starts."
    )


def refuse_other_step(step: Callable[..., Any]) -> None:
    """Raises an error for a step of a model of the other Keras.

    Args:
        step: What was given to `Strategy.run`.

    Raises:
        TypeError: It belongs to a model of the other Keras.
    """
    step = unwrapped(step)
    owner = getattr(step, "__self__", None)
    kinds = type(owner).__mro__ if owner is not None else ()
    homes = [getattr(thing, "__module__", "") or "" for thing in (step, *kinds)]
    if any(home.split(".")[0] == _OTHER for home in homes):
        raise TypeError(
            "A strategy of keras_fastnet trains models of one Keras. Received: a model "
            f"of {_OTHER}. {what_to_do()}"
        )


def refuse_in_other_models(optimizer_class: type) -> None:
    """Makes the other Keras raise an error for a keras_fastnet optimizer.

    Args:
        optimizer_class: The class of an optimizer that is made now.
    """
    # What is not imported by now has no models.
    if _OTHER not in sys.modules:
        return
    with contextlib.suppress(ImportError):
        home: Any = importlib.import_module(f"{_OTHER}.src.optimizers")
        if not hasattr(home.get, "_fastnet_kinds"):
            home.get = _refusing(home.get)
        home.get._fastnet_kinds.add(optimizer_class)


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(identifier: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(identifier, tuple(get._fastnet_kinds)):  # type: ignore[attr-defined]
            raise TypeError(
                "A model and its optimizer must be of one Keras. Received: an "
                f"optimizer {type(identifier).__name__} of {keras.__name__} for a "
                f"model of {_OTHER}. {what_to_do()}"
            )
        return original(identifier, *args, **kwargs)

    get._fastnet_kinds = set()  # type: ignore[attr-defined]
    return get
