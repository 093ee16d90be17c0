"""An error for models of another Keras than the package uses."""

from collections.abc import Callable
from typing import Any

from keras_fastnet._keras.keras_api import keras, keras_2_is_asked_for
from keras_fastnet._keras.wrapping import unwrapped

_PACKAGES = ("keras", "tf_keras")
_OTHER = next(name for name in _PACKAGES if name != keras.__name__)


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
        change = "Unset" if keras_2_is_asked_for() else "Set"
        raise TypeError(
            "A strategy of keras_fastnet trains models of one Keras. Received: a model "
            f"of {_OTHER}, while keras_fastnet uses {keras.__name__} "
            f"{keras.__version__} in this process, as TensorFlow does. Make the model "
            f"with it, as `keras_fastnet.keras`, or use {_OTHER} for everything: "
            f"{change} the environment variable TF_USE_LEGACY_KERAS=1 before the "
            "program starts."
        )
