"""Trains a small model; then rank 1 performs the action named first."""

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet

ACTION, *OPTIONS = sys.argv[1:]
strategy = keras_fastnet.TorusStrategy(**json.loads(OPTIONS[0] if OPTIONS else "{}"))
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    model.compile(optimizer="sgd", loss="mse")
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = x[:, :3]


def fit(epochs):
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0)


fit(2)
weights = [w.tobytes().hex() for w in model.get_weights()]
# One write, so that ranks do not share a line.
sys.stdout.write(f"rank {strategy.rank} weights {weights}\n")
sys.stdout.flush()
if strategy.rank == 0:
    print(strategy.describe(), flush=True)
if ACTION == "raise-on-all":
    raise ValueError("on purpose")
if strategy.rank == 1:
    if ACTION == "raise":
        raise ValueError("on purpose")
    if ACTION == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
if ACTION == "other":
    # Another sum on each rank.
    vector = tf.ones([3 + strategy.rank])
    total = tf.function(
        lambda: strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", vector)
        )
    )
    total()
if ACTION != "end":
    fit(10**9)
