"""Trains with backups, while workers fail as told, and once more without.

    train_with_restarts.py FOLDER [RANK:UPDATE:ACTION…]

ACTION is `kill`, `stop`, `raise`, `abort` or `scale-N`, which runs `fastnet scale N`;
with `always-` before it, it is done in every start, otherwise once. With an order
`grow`, batches grow, and no layer draws random numbers.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import keras
import numpy as np

import keras_fastnet as fastnet

EXAMPLES, BATCH, EPOCHS = 96, 12, 3
# Sums over an epoch that differ if an example comes twice or not at all.
MARKS = {"number": lambda i: i, "wave": lambda i: keras.ops.sin(7.0 * i)}


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
                case "abort":
                    os.abort()
                case scale if scale.startswith("scale-"):
                    number = scale.removeprefix("scale-")
                    command = [sys.executable, "-m", "keras_fastnet.cli", "scale"]
                    subprocess.run([*command, number], check=True)
                case "raise":
                    raise RuntimeError("no data")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.rank == 0:
            with (self.folder / "epochs").open("a") as file:
                seen = {name: float(logs[name]) for name in MARKS}
                file.write(json.dumps([epoch, seen]) + "\n")


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Returns features, and targets next to each example's number."""
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
    return x, np.stack([x.sum(axis=1), np.arange(EXAMPLES)], axis=1).astype("float32")


def metric(name: str) -> Any:
    def of(y_true: Any, y_pred: Any) -> Any:
        return MARKS[name](y_true[:, 1])

    of.__name__ = name
    return of


def loss(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.square(y_pred[:, 0] - y_true[:, 0])


def train(strategy: Any, grow: bool, callbacks: list[Any]) -> list[np.ndarray]:
    """Trains and returns the weights."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dropout(0.0 if grow else 0.3),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        if grow:
            optimizer = fastnet.LargeBatchOptimizer(optimizer)
            phases = fastnet.callbacks.BatchGrowth(
                {0: 24, 1: 48}, linear_scaling=True, max_device_batch=16
            )
            callbacks = [phases, *callbacks]
        model.compile(optimizer, loss, metrics=[metric(name) for name in MARKS])
    model.fit(
        *examples(), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks
    )
    return [np.asarray(weight) for weight in model.get_weights()]


def main(folder: pathlib.Path, orders: list[str]) -> None:
    grow = "grow" in orders
    strategy = fastnet.TorusStrategy(wait_timeout=10.0)
    act = Act(folder, [order for order in orders if order != "grow"], strategy.rank)
    backups = fastnet.callbacks.BackupAndRestore(folder / "backups", save_freq=1)
    weights = train(strategy, grow, [act, backups])
    whole = train(strategy, grow, [])
    np.savez(folder / f"weights-{strategy.rank}.npz", *weights)
    np.savez(folder / f"whole-{strategy.rank}.npz", *whole)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
