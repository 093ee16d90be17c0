"""Trains a small model; some ranks are suspended, fail, or do something else."""

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.strategies import torus_strategy

ACTION, PLACE, VICTIMS, OPTIONS = sys.argv[1:]
EXAMPLES = np.ones([8, 4], "float32")


def act(place: str, rank: int) -> None:
    """Does what is told, on the victims at their place."""
    if place != PLACE or str(rank) not in VICTIMS:
        return
    print("the victim", os.getpid(), flush=True)
    if ACTION == "raise":
        raise ValueError("on purpose")
    # What it is doing is left for the others every second.
    time.sleep(3.0)
    if ACTION == "suspend":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif ACTION == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ACTION == "leave":
        sys.exit(0)
    else:
        time.sleep(1000)


class Act(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.params["epochs"] > 2:
            act("training", strategy.rank)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        act("validation", strategy.rank)


def rank_outside() -> int:
    """Returns this process's rank before a strategy knows it."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return int(os.environ.get("PMI_RANK", config.get("task", {}).get("index", 0)))


meet = torus_strategy.meet_workers


def meet_and_act(*arguments: Any) -> Any:
    nodes = meet(*arguments)
    act("servers", rank_outside())
    return nodes


torus_strategy.meet_workers = meet_and_act
act("meeting", rank_outside())
strategy = keras_fastnet.TorusStrategy(**json.loads(OPTIONS))
act("building", strategy.rank)
is_victim = str(strategy.rank) in VICTIMS
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
if ACTION == "other":
    # Another sum on the victim.
    vector = tf.ones([8 if is_victim else 4])
    context = tf.distribute.get_replica_context
    total = tf.function(
        lambda: strategy.run(lambda: context().all_reduce("SUM", vector))
    )
    total()
data = tf.data.Dataset.from_tensor_slices((EXAMPLES, EXAMPLES[:, :1]))
# Of unknown length.
data = data.repeat().batch(4).filter(lambda x, y: True)
if ACTION == "data" and is_victim:
    data = data.take(4)
if ACTION != "data":
    data = data.take(2)
model.fit(
    data,
    validation_data=(EXAMPLES, EXAMPLES[:, :1]),
    epochs=10**9,
    verbose=0,
    callbacks=[Act()],
)
