"""The Keras that the package uses, chosen once, as TensorFlow chooses `tf.keras`.

TensorFlow up to 2.15 has Keras 2 of its own; later ones take Keras 3 or, where the
environment says `TF_USE_LEGACY_KERAS=1`, Keras 2 as the package `tf_keras`.
"""

import contextlib
import importlib
import os
import sys
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

OLDEST_KERAS_3 = (3, 10)
# The last that were tried: each release changes private API that the package adapts.
_NEWEST_KERAS_3 = (3, 16)
_NEWEST_TENSORFLOW = (2, 21)
_OTHER_BACKENDS = ("jax", "torch", "openvino")


def keras_2_is_asked_for() -> bool:
    """Returns whether `TF_USE_LEGACY_KERAS` is set, as TensorFlow reads it.

    Ray Train says so in all of its workers, whatever they train: there it is whether
    the script has imported `tf_keras`.
    """
    asked = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    if asked and _in_ray_train():
        return "tf_keras" in sys.modules
    return asked


def _in_ray_train() -> bool:
    # Its workers have imported it.
    train = sys.modules.get("ray.train")
    if train is None:
        return False
    try:
        train.get_context().get_world_rank()
    except RuntimeError:
        return False
    return True


def _name() -> str:
    """Returns the name of the package, after the rule of TensorFlow's `tf.keras`."""
    return "tf_keras" if keras_2_is_asked_for() else "keras"


def _check_versions(name: str) -> None:
    """Raises for versions that do not work together.

    Without importing them: two of them fail in the middle of that.
    """
    installed = _installed(name)
    if installed is None:
        raise ImportError(
            f"keras_fastnet uses the same Keras as TensorFlow: {name}, by "
            f"TF_USE_LEGACY_KERAS={os.environ.get('TF_USE_LEGACY_KERAS', '')!r}. "
            f"Received: no package {name}. Install it with `pip install {name}`, in "
            "the version of your TensorFlow, or set the variable otherwise."
        )
    tensorflow = _tensorflow_version()
    keras_version = _numbers(installed)
    if keras_version[0] == 2:
        good = tensorflow < (2, 16) or name == "tf_keras"
    else:
        good = OLDEST_KERAS_3 <= keras_version <= _NEWEST_KERAS_3
        good = good and tensorflow >= (2, 18)
    untried = tensorflow < (2, 15) or tensorflow > _NEWEST_TENSORFLOW
    if untried or tensorflow in ((2, 16), (2, 17)) or not good:
        newest = ".".join(map(str, _NEWEST_TENSORFLOW))
        raise ImportError(
            f"keras_fastnet runs on TensorFlow 2.18 to {newest} with Keras 3.10 to "
            f"{'.'.join(map(str, _NEWEST_KERAS_3))}, on TensorFlow 2.18 to {newest} "
            "with tf_keras (TF_USE_LEGACY_KERAS=1), and on TensorFlow 2.15 with its "
            "own Keras 2. Received: TensorFlow "
            f"{'.'.join(map(str, tensorflow))} with {name} {installed}. "
            "Install one of these combinations."
        )


def _installed(name: str) -> str | None:
    """Returns the version of the package that holds a Keras, or `None`."""
    package = name.replace("_", "-")
    for distribution in (package, f"{package}-nightly"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def _tensorflow_version() -> tuple[int, ...]:
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-intel"):
        try:
            return _numbers(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    # A build under another name.
    import tensorflow as tf

    return _numbers(tf.__version__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _imported(name: str) -> ModuleType:
    """Returns Keras, which imports its backend at once."""
    try:
        module = importlib.import_module(name)
        backend = module.backend.backend()
    except ModuleNotFoundError as error:
        if error.name not in _OTHER_BACKENDS:
            raise
        backend = error.name
    if backend != "tensorflow":
        raise ImportError(
            "keras_fastnet needs Keras's TensorFlow backend. Received: the backend "
            f"{backend}. Set KERAS_BACKEND=tensorflow before Keras is imported, or "
            '"backend": "tensorflow" in ~/.keras/keras.json.'
        )
    return module


if TYPE_CHECKING:
    import keras
else:
    _check_versions(_name())
    keras = _imported(_name())

IS_KERAS_2 = keras.__version__.startswith("2.")


def require_keras_3(what: str) -> None:
    """Raises an error if the package uses Keras 2.

    Args:
        what: The feature that needs Keras 3, as the start of a sentence.

    Raises:
        NotImplementedError: The package uses Keras 2.
    """
    if IS_KERAS_2:
        raise NotImplementedError(
            f"{what} is for Keras 3. Received: {keras.__name__} {keras.__version__}. "
            "Unset TF_USE_LEGACY_KERAS, on TensorFlow 2.18 or later."
        )


__all__ = [
    "IS_KERAS_2",
    "OLDEST_KERAS_3",
    "keras",
    "keras_2_is_asked_for",
    "require_keras_3",
]
