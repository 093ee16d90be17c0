"""Gives a training the state and the position of a backup."""

import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import TrainingData
from keras_fastnet.callbacks.backups.callback_states import restore_states
from keras_fastnet.callbacks.backups.identity import (
    Parts,
    check_same_variables,
    checked_settings,
    remarks,
)
from keras_fastnet.callbacks.learning_rate import set_learning_rate
from keras_fastnet.callbacks.progress import updates_of
from keras_fastnet.text import count


class Restoring:
    """Restores a backup in two parts, since `fit` resets some of the state.

    Args:
        model: The model, with the state of its metrics and optimizer built.
        folder: The folder of the backup, for messages.
        note: Called with lines about what has changed since the backup.
    """

    def __init__(
        self,
        model: keras.Model,
        folder: pathlib.Path | str,
        note: Callable[[str], None],
    ):
        self._model = model
        self._folder = folder
        self._note = note
        self._metrics: dict[str, np.ndarray] = {}
        self._callbacks: Any = {}

    def begin(
        self,
        arrays: dict[str, np.ndarray],
        about: dict[str, Any],
        data: TrainingData,
        identity: Parts,
        may_differ: Collection[str],
    ) -> None:
        """Restores the weights, the optimizer, and the position in the data.

        Args:
            arrays: The backup's arrays, by name.
            about: What the backup states about itself.
            data: The training data.
            identity: This training's `identity_of`. Settings that it does not know are
                taken from the backup.
            may_differ: Names of parts in which the backup may be of another training.

        Raises:
            ValueError: If the backup is of another training.
        """
        epoch, batch = about["epoch"], about["batch"]
        theirs = about.get("parts")
        own = {}
        variables = keras_models.whole_state(self._model)
        if theirs is None:
            self._note(
                f"the backup in {self._folder} was written by an earlier version of "
                "keras_fastnet and does not state which training it belongs to"
            )
            # With Keras 2, such backups have no learning rate.
            variables = {
                name: variable
                for name, variable in variables.items()
                if name in arrays or not name.startswith("learning rate/")
            }
        else:
            own = checked_settings(
                theirs,
                identity,
                # At the start of an epoch another order does no harm.
                exact_order=batch > 0 or (epoch > 0 and not data.whole_epochs),
                may_differ=may_differ,
                folder=self._folder,
            )
            for text in remarks(theirs, identity):
                self._note(text)
            if theirs["metrics"] != identity["metrics"]:
                arrays = _without_metrics(arrays)
                variables = _without_metrics(variables)
        check_same_variables(variables, arrays, self._folder)
        for name, array in _without_metrics(arrays).items():
            variables[name].assign(array)
        optimizer: Any = self._model.optimizer
        if rates := own.get("learning rate"):
            set_learning_rate(optimizer, rates[0])
        if steps := own.get("accumulation steps"):
            optimizer.accumulation_steps = steps
        if batch > 0:
            self._metrics = {n: a for n, a in arrays.items() if is_metric(n)}
        self._callbacks = about["callbacks"]
        try:
            data.resume(epoch, batch)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise ValueError(
                "The data must reach the position of the backup. Received: a backup of "
                f"batch {batch} of epoch {epoch + 1} in {self._folder}, and data "
                "that end before it. Pass the data of the interrupted training, or "
                "another `backup_dir`."
            ) from None
        keras_models.begin_fit_at(self._model, epoch)
        self._note(
            f"resuming at epoch {epoch + 1}, batch {batch + 1}, after "
            f"{count(updates_of(optimizer), 'update')}, from {self._folder}"
        )

    def finish(self, callbacks: Sequence[Any]) -> None:
        """Restores what Keras and callbacks have reset since, in the first epoch.

        Args:
            callbacks: All callbacks of the training.
        """
        variables = keras_models.whole_state(self._model)
        for name, value in self._metrics.items():
            variable = values.tensorflow_variable(variables[name])
            upstream.assign_total(variable, value)
        restore_states(callbacks, self._callbacks, self._note)


def is_metric(name: str) -> bool:
    """Returns whether a variable is a metric's.

    Args:
        name: Its name in the whole state of a model.
    """
    return name.startswith("metrics/")


def _without_metrics(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not is_metric(name)}
