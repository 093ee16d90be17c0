"""What the workers of a `WorkerPool` are told to do about backups."""

import contextlib
import io
from typing import Any

import numpy as np

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras import values
from keras_fastnet._keras.adapters import models
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BackupAndRestore
from keras_fastnet.callbacks.backups.backup_folder import wait_for_backups
from keras_fastnet.callbacks.backups.training_state import set_variables
from tests.distributed.jobs import compiled_network, examples, state
from tests.stopping import Stop, StopAfter


def fit_with_backups(
    strategy: Any,
    *,
    folder: str,
    stop_after: int | None = None,
    seed: int = 7,
) -> dict[str, Any]:
    """Trains three epochs of six batches, until the end or a number of batches.

    Returns:
        What training left behind, what was printed, and the error that ended it.
    """
    keras.utils.set_random_seed(seed)
    x, y = examples(96)
    model = compiled_network(strategy, normalization="synchronized")
    callbacks: list[Any] = [BackupAndRestore(folder, save_freq=1)]
    if stop_after is not None:
        callbacks.append(StopAfter(stop_after))
    error = ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            options = {"batch_size": 16, "epochs": 3, "verbose": 0}
            model.fit(x, y, callbacks=callbacks, **options)
        except (Stop, ValueError) as ended:
            error = f"{type(ended).__name__}: {ended}"
            wait_for_backups()
    return {**state(model), "printed": printed.getvalue(), "error": error}


def restored_counts(strategy: Any) -> list[list[int]]:
    """Returns the counts of a metric after a backup has set them to 1, 3, 5 and 7."""
    x, y = np.ones((12, 3), "float32"), np.arange(12) % 2
    with strategy.scope():
        layers = [keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]
        model = keras.Sequential(layers)
        metric = keras.metrics.BinaryIoU()
        model.compile("sgd", "binary_crossentropy", metrics=[metric])
    model.fit(x, y, verbose=0)
    variables = {
        name: values.tensorflow_variable(variable)
        for name, variable in models.whole_state(model).items()
    }
    # As the chief sends them to all.
    arrays = {name: upstream.value_of(v) for name, v in variables.items()}
    (counts,) = [name for name, array in arrays.items() if array.shape == (2, 2)]
    set_variables(model, {**arrays, counts: np.array([[1, 3], [5, 7]])}, "folder")
    return upstream.value_of(variables[counts]).tolist()
