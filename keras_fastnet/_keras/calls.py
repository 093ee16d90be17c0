"""Calls of `fit`, `evaluate` and `predict`, which all workers must make together."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_fastnet._keras.active_strategy import strategy_of
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.wrapping import wrap


class CallOfFit(NamedTuple):
    """A call of `fit` that was not carried out.

    Attributes:
        model: The model.
        arguments: The arguments of the call, by name.
    """

    model: keras.Model
    arguments: dict[str, Any]


class _FitReached(BaseException):
    """Ends a program at its call of `fit`, past its `except Exception`."""


_caught: list[CallOfFit] | None = None


@contextlib.contextmanager
def ending_at_fit() -> Iterator[list[CallOfFit]]:
    """Ends the code within it at its first call of `fit`.

    The changes to Keras must have been installed.

    Yields:
        A list, to which the call is added; it stays empty if there is none.
    """
    global _caught
    caught: list[CallOfFit] = []
    _caught = caught
    try:
        yield caught
    except _FitReached:
        pass
    finally:
        _caught = None


def _call(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    if _caught is not None and original.__name__ == "fit":
        if not _caught:
            bound = inspect.signature(original).bind(model, *args, **kwargs)
            _, *arguments = bound.arguments.items()
            _caught.append(CallOfFit(model, dict(arguments)))
        raise _FitReached
    strategy = strategy_of(model)
    # Keras evaluates within `fit`, with arguments that have been compared.
    if strategy is None or kwargs.get("_use_cached_eval_dataset"):
        return original(model, *args, **kwargs)
    with strategy.fit_support.calling(original, model, args, kwargs):
        if strategy.rank and _shows_progress(original, model, args, kwargs):
            # One progress bar, that of rank 0, also without a launcher.
            kwargs["verbose"] = 0
        return original(model, *args, **kwargs)


def _shows_progress(original: Any, model: Any, args: Any, kwargs: Any) -> bool:
    """Returns whether Keras chooses to show its progress, as `verbose` is not given."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    return bound.arguments.get("verbose", "auto") == "auto"


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
