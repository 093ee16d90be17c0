"""A training for `soak.py`, with backups: `train.py FOLDER EPOCHS FIXED PAUSE`.

FIXED is 1 if the number of workers stays the same: the network then has a layer that
draws random numbers. PAUSE is the number of seconds that every update takes longer.
Rank 0 writes the time of each update to FOLDER/updates, and sums that tell which
examples an epoch has seen to FOLDER/epochs; at the end the weights.
"""

import json
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np

import keras_fastnet as fastnet

EXAMPLES, BATCH = 512, 32
# Their means over an epoch differ if an example comes twice or not at all.
MARKS = {"number": lambda i: i, "wave": lambda i: keras.ops.sin(7.0 * i)}


class Notes(keras.callbacks.Callback):
    """Writes down when updates are made and what epochs have seen."""

    def __init__(self, folder: pathlib.Path, rank: int, pause: float):
        super().__init__()
        self.folder, self.rank, self.pause = folder, rank, pause

    def _write(self, name: str, entry: Any) -> None:
        if self.rank == 0:
            with (self.folder / name).open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updates = int(self.model.optimizer.iterations.numpy())
        self._write("updates", [updates, time.time()])
        time.sleep(self.pause)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write("epochs", [epoch, {name: float(logs[name]) for name in MARKS}])


def metric(name: str) -> Any:
    def of(y_true: Any, y_pred: Any) -> Any:
        return MARKS[name](y_true[:, 1])

    of.__name__ = name
    return of


def loss(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.square(y_pred[:, 0] - y_true[:, 0])


def main(folder: pathlib.Path, epochs: int, fixed: bool, pause: float) -> None:
    strategy = fastnet.TorusStrategy()
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 16)).astype("float32")
    y = np.stack([np.tanh(x).sum(axis=1), np.arange(EXAMPLES)], axis=1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((16,)),
                keras.layers.Dense(32, activation="tanh"),
                keras.layers.Dropout(0.2 if fixed else 0.0),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.002, momentum=0.9),
            loss,
            metrics=[metric(name) for name in MARKS],
        )
    model.fit(
        x,
        y.astype("float32"),
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[
            Notes(folder, strategy.rank, pause),
            fastnet.callbacks.BackupAndRestore(folder / "backups", save_freq=5),
        ],
    )
    if strategy.rank == 0:
        np.savez(folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    directory, number, same, seconds = sys.argv[1:]
    main(pathlib.Path(directory), int(number), same == "1", float(seconds))
