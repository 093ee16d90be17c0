"""Wraps functions of Keras, once, when something of ours needs it."""

import functools
from collections.abc import Callable
from typing import Any

from keras_fastnet._keras.keras_api import keras

HOOKS: list[tuple[Any, str, Callable[..., Any]]] = []
"""Owner and name of each function that is wrapped, and by what."""
_installed: set[tuple[Any, str]] = set()


def hook(owner: Any, name: str) -> Callable[[Callable], Callable]:
    """Registers a wrapper of `owner.name`, which is called with the original first.

    Args:
        owner: A class or module of Keras.
        name: One of its functions or properties.
    """

    def register(wrapper: Callable) -> Callable:
        HOOKS.append((owner, name, wrapper))
        return wrapper

    return register


def install() -> None:
    """Wraps the functions of Keras, where that has not been done.

    Raises:
        ImportError: This Keras lacks what must be wrapped.
    """
    for owner, name, wrapper in HOOKS:
        if (owner, name) in _installed:
            continue
        if not hasattr(owner, name):
            raise ImportError(
                "keras_fastnet adapts the insides of Keras 3.10 to 3.15, and of Keras "
                "2.15 to 2.20, to several workers. Received: Keras "
                f"{keras.__version__}, where `{owner.__name__}.{name}` is missing. "
                "Install another Keras, or a newer keras_fastnet."
            )
        setattr(owner, name, _wrapped(getattr(owner, name), wrapper))
        _installed.add((owner, name))


def unwrapped(function: Any) -> Any:
    """Returns the Python function within wrappers and `tf.function`.

    Args:
        function: Any function or method.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "python_function", function)


def _wrapped(original: Any, wrapper: Callable) -> Any:
    if isinstance(original, property):
        return property(_wrapped(original.fget, wrapper), doc=original.__doc__)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return function
