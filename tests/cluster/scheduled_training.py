"""Trains a small model on the workers that a scheduler or `fastnet run` starts.

    scheduled_training.py FOLDER EPOCHS SECONDS [TRANSPORT [RANK:UPDATE:ACTION…]]

writes the weights to FOLDER/rank-N.npz and prints the cluster on rank 0. Every step
takes SECONDS longer, so that a test can interrupt it. After so many updates the rank
does an action once, `kill`, `stop` or `raise`, and not again when it is restarted.
"""

import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np

import keras_fastnet as fastnet

FOLDER = pathlib.Path(sys.argv[1])
EPOCHS, SECONDS = int(sys.argv[2]), float(sys.argv[3])

TRANSPORT = sys.argv[4] if sys.argv[4:] else "auto"
ORDERS = [order.split(":") for order in sys.argv[5:]]


def act(batch, logs=None):
    time.sleep(SECONDS)
    done = int(model.optimizer.iterations.numpy())
    for rank, update, action in ORDERS:
        mark = FOLDER / f"done-{rank}-{update}"
        if (int(rank), int(update)) != (strategy.rank, done) or mark.exists():
            continue
        mark.touch()
        if action == "raise":
            raise RuntimeError("no data")
        os.kill(os.getpid(), getattr(signal, f"SIG{action.upper()}"))


limits = {"wait_timeout": 10.0} if ORDERS else {}
strategy = fastnet.TorusStrategy(transport=TRANSPORT, start_timeout=120.0, **limits)
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    lars = fastnet.LARS(0.1)
    model.compile(fastnet.LargeBatchOptimizer(lars), "mse")
gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
# One write, so that ranks do not share a line.
sys.stdout.write(f"rank {strategy.rank} of {strategy.num_workers}, GPUs {gpus}\n")
sys.stdout.flush()
if strategy.rank == 0:
    print(strategy.describe(), flush=True)

x = np.random.default_rng(0).normal(size=(256, 6)).astype("float32")
model.fit(
    *(x, x.sum(axis=1, keepdims=True)),
    batch_size=16,
    epochs=EPOCHS,
    callbacks=[
        fastnet.callbacks.BatchGrowth({0: 16, 1: 32}),
        keras.callbacks.LambdaCallback(on_train_batch_end=act),
        fastnet.callbacks.BackupAndRestore(
            FOLDER / "backups", save_freq=1 if ORDERS else "epoch"
        ),
    ],
    verbose=2 if strategy.rank == 0 else 0,
)
np.savez(FOLDER / f"rank-{strategy.rank}.npz", *model.get_weights())
