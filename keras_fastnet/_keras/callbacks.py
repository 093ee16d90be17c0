"""Where callbacks are called: the ends of epochs, files, and the wish to stop."""

import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.chosen import callback_classes
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.protocols import (
    HookedCallback,
    HookedOptimizer,
    strategy_of,
)
from keras_fastnet._keras.training_data import data_of
from keras_fastnet._keras.wrapping import hook, install

_CallbackList = callback_classes.CallbackList

_in_epoch: "weakref.WeakSet[Any]" = weakref.WeakSet()


@hook(_CallbackList, "on_epoch_begin")
def _begin_epoch(original, callbacks, *args, **kwargs):
    _in_epoch.add(callbacks)
    if optimizer := _hooked_optimizer(callbacks):
        optimizer.begin_epoch()
    return original(callbacks, *args, **kwargs)


# Validation within `fit` is called on the same list.
@hook(_CallbackList, "on_test_begin")
def _finish_before_validation(original, callbacks, *args, **kwargs):
    _end_epoch(callbacks)
    return original(callbacks, *args, **kwargs)


@hook(_CallbackList, "on_epoch_end")
def _finish_epoch(original, callbacks, *args, **kwargs):
    _end_epoch(callbacks)
    original(callbacks, *args, **kwargs)
    _stop_together(callbacks)


def _end_epoch(callbacks: Any) -> None:
    optimizer = _hooked_optimizer(callbacks)
    if optimizer and callbacks in _in_epoch:
        optimizer.end_epoch()
    _in_epoch.discard(callbacks)


def _hooked_optimizer(callbacks: Any) -> HookedOptimizer | None:
    optimizer = getattr(callbacks.model, "optimizer", None)
    return optimizer if isinstance(optimizer, HookedOptimizer) else None


# Files have one writer. Every worker would write the same paths (tensorflow#38635).
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


@hook(_CallbackList, "__init__")
def _only_the_chief_writes(original, callbacks, given=None, *args, **kwargs):
    strategy = strategy_of(kwargs.get("model"))
    if strategy is not None:
        given = tf.nest.flatten(given) if given else []
        backup = keras.callbacks.BackupAndRestore
        if strategy.num_workers > 1 and any(isinstance(c, backup) for c in given):
            raise ValueError(
                "Several workers need backups that one of them writes and that hold "
                "the position in the data. Received: "
                "keras.callbacks.BackupAndRestore. Use "
                "keras_fastnet.callbacks.BackupAndRestore, which takes the same "
                "arguments."
            )
        if strategy.rank:
            given = [c for c in given if not isinstance(c, _WRITERS)]
    original(callbacks, given, *args, **kwargs)
    for callback in callbacks.callbacks:
        if isinstance(callback, HookedCallback):
            callback.siblings = callbacks.callbacks


@hook(_CallbackList, "on_train_begin")
def _begin_fit(original, callbacks, logs=None):
    original(callbacks, logs)
    strategy = strategy_of(callbacks.model)
    data = data_of(callbacks.model)
    if strategy is not None and data is not None:
        verbose = bool(callbacks.params.get("verbose"))
        strategy.begin_fit(callbacks.model, data, verbose)


# Workers stop together: who left an epoch alone would leave the others waiting.
@hook(_CallbackList, "on_train_batch_end")
def _stop_at_the_end(original, callbacks, batch, logs=None):
    original(callbacks, batch, logs)
    model = callbacks.model
    strategy = strategy_of(model)
    if strategy is None or strategy.num_workers < 2 or not model.stop_training:
        return
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks.callbacks):
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            # The same on all workers.
            return
    model.stop_training = False
    _stops.add(callbacks)


def _stop_together(callbacks: Any) -> None:
    model = callbacks.model
    strategy = strategy_of(model)
    if strategy is None or strategy.num_workers < 2:
        return
    wanted = model.stop_training or callbacks in _stops
    _stops.discard(callbacks)
    model.stop_training = strategy.any_worker(wanted)


_stops: "weakref.WeakSet[Any]" = weakref.WeakSet()


_off_progress_bar: set[str] = set()


@hook(callback_classes.ProgbarLogger, "on_epoch_end")
def _short_bar(original, bar, epoch, logs=None):
    hidden = tuple(_off_progress_bar)
    shown = {k: v for k, v in (logs or {}).items() if not k.startswith(hidden)}
    return original(bar, epoch, shown)


def keep_off_progress_bar(*prefixes: str) -> None:
    """Keeps logs out of Keras's progress bar, which would not be one line any more.

    Args:
        prefixes: How the names of the logs begin.
    """
    _off_progress_bar.update(prefixes)
    install()
