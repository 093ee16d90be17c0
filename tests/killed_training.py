"""Trains on several workers, one of which may be killed; forks them for speed.

    python -m tests.killed_training

Reads a JSON object from each line of standard input and answers with one when all
workers have ended. TensorFlow is imported once, before the forks.
"""

import json
import os
import pathlib
import signal
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

import keras_fastnet as fastnet
from keras_fastnet._keras.adapters import optimizers
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.cluster.ports import reserved_ports
from tests.distributed.jobs import with_policy

MICRO_BATCH, EPOCHS = 16, 3
DROPOUT = 0.3


class Kill(keras.callbacks.Callback):
    """Sends its process a signal in a given step."""

    def __init__(self, step: int | None, number: int):
        super().__init__()
        self.left = step
        self.number = number

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), self.number)
                self.left = None


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


class Batches(keras.utils.Sequence):
    """Batches that Keras shuffles."""

    def __init__(self, count: int):
        super().__init__()
        self.parts = examples(count)

    def __len__(self) -> int:
        return -(-len(self.parts[0]) // MICRO_BATCH)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * MICRO_BATCH, (index + 1) * MICRO_BATCH)
        return tuple(part[rows] for part in self.parts)


def data(kind: str, count: int) -> dict[str, Any]:
    x, y = examples(count)
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": MICRO_BATCH}
    if kind == "pydataset":
        return {"x": Batches(count), "shuffle": True}
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "endless":
        dataset = dataset.batch(MICRO_BATCH).repeat()
        return {"x": dataset, "steps_per_epoch": 7, "shuffle": False}
    # Twice: only reading begins the inner one.
    dataset = dataset.shuffle(count).shuffle(count).batch(MICRO_BATCH)
    if kind == "unknown":
        dataset = dataset.filter(lambda *_: True)
    if kind == "own":
        # Each worker's own.
        dataset = with_policy(dataset, "OFF")
    return {"x": dataset, "shuffle": False}


def train(folder: pathlib.Path, command: dict[str, Any], kill: int | None) -> None:
    kind, count = command["kind"], command["count"]
    keras.utils.set_random_seed(3)
    strategy = fastnet.TorusStrategy(start_timeout=60.0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dropout(DROPOUT),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            fastnet.LargeBatchOptimizer(fastnet.LARS(0.1)), "mse", metrics=["mae"]
        )
    history = model.fit(
        **data(kind, count),
        epochs=EPOCHS,
        # As in scripts: what the chief says must not keep it from the others.
        verbose=2 if strategy.rank == 0 else 0,
        validation_data=examples(100),
        callbacks=[
            fastnet.callbacks.LearningRateWarmup(
                0.3,
                1,
                fastnet.schedules.Cosine(2),
                steps_per_epoch={"unknown": 10, "own": 20}.get(kind),
            ),
            fastnet.callbacks.BatchGrowth({0: 16, 1: 32, 2: 64}),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
            Kill(kill, command.get("signal", signal.SIGKILL)),
            fastnet.callbacks.BackupAndRestore(
                folder / "backups", save_freq=command.get("save_freq", 1)
            ),
        ],
    ).history
    np.savez(
        folder / f"rank{strategy.rank}.npz",
        *[
            np.array(v)
            for v in (*model.variables, *optimizers.variables_of(model.optimizer))
        ],
        logs=[history[name][-1] for name in ("loss", "mae", "val_loss")],
    )


def worker(command: dict[str, Any], rank: int, ports: list[int]) -> None:
    """The life of a forked process."""
    if len(ports) > 1:
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    folder = pathlib.Path(command["folder"])
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    kill = command["step"] if rank == command["rank"] else None
    train(folder, command, kill)
    sys.stdout.flush()


def run(command: dict[str, Any]) -> list[int]:
    """Runs workers to their end, or until one is killed; returns exit statuses."""
    with reserved_ports(command["workers"]) as ports:
        children: dict[int, int] = {}
        for rank in range(len(ports)):
            child = os.fork()
            if not child:
                try:
                    worker(command, rank, ports)
                except SystemExit as end:
                    sys.stdout.flush()
                    os._exit(end.code)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
                os._exit(0)
            children[child] = rank
        statuses = [0] * len(ports)
        while children:
            child, status = os.wait()
            statuses[children.pop(child)] = os.waitstatus_to_exitcode(status)
            if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 1:
                for other in children:
                    os.kill(other, signal.SIGKILL)
        return statuses


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
