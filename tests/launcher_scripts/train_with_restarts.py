"""Trains with backups, while workers fail as told, and once more without.

    train_with_restarts.py FOLDER [RANK:UPDATE:ACTION…]

ACTION is `kill`, `stop` or `raise`; with `always-` before it, it is done in every
start, otherwise once.
"""

import os
import pathlib
import signal
import sys
from typing import Any

import keras
import numpy as np

import keras_fastnet as fastnet


class Act(keras.callbacks.Callback):
    """Does what the orders say when the optimizer has made so many updates."""

    def __init__(self, folder: pathlib.Path, orders: list[str], rank: int):
        super().__init__()
        self.folder, self.orders, self.rank = folder, orders, rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updates = int(self.model.optimizer.iterations.numpy())
        for order in self.orders:
            rank, update, action = order.split(":")
            if (int(rank), int(update)) != (self.rank, updates):
                continue
            mark = self.folder / f"done-{rank}-{update}"
            if mark.exists() and not action.startswith("always"):
                continue
            mark.touch()
            match action.removeprefix("always-"):
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "raise":
                    raise RuntimeError("no data")


def train(strategy: Any, callbacks: list[Any]) -> list[np.ndarray]:
    """Trains and returns the weights."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    model.fit(
        *(x, x.sum(axis=1)), batch_size=12, epochs=3, verbose=0, callbacks=callbacks
    )
    return [np.asarray(weight) for weight in model.get_weights()]


def main(folder: pathlib.Path, orders: list[str]) -> None:
    strategy = fastnet.TorusStrategy(wait_timeout=10.0)
    act = Act(folder, orders, strategy.rank)
    backups = fastnet.callbacks.BackupAndRestore(folder / "backups", save_freq=1)
    weights = train(strategy, [act, backups])
    whole = train(strategy, [])
    np.savez(folder / f"weights-{strategy.rank}.npz", *weights)
    np.savez(folder / f"whole-{strategy.rank}.npz", *whole)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
