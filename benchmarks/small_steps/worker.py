"""Trains a tiny network and prints the time of a step; started by `run.py`."""

import contextlib
import json
import os
import statistics
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

STEPS, EPOCHS, EXAMPLES = 500, 6, 32


class Epochs(keras.callbacks.Callback):
    """Notes the time of each epoch's steps, and the processor time of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.wall: list[float] = []
        self.processor: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Keras makes the iterator before the first step, TorusStrategy within it.
        self.begun = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wall, processor = self.begun
        self.wall.append((time.perf_counter() - wall) / STEPS)
        self.processor.append((time.process_time() - processor) / STEPS)


def strategy_of(kind: str) -> Any:
    """Returns the strategy of a configuration; `None` for Keras alone."""
    if kind == "keras":
        return None
    if kind == "mirrored":
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../weak_scaling"))
        from mirrored_with_reduce import MirroredWithReduce

        return MirroredWithReduce()
    import keras_fastnet

    return keras_fastnet.TorusStrategy(transport=kind)


def main() -> None:
    """Trains, and prints the medians on the chief."""
    kind, steps_per_execution = sys.argv[1], int(sys.argv[2])
    strategy = strategy_of(kind)
    workers = 1
    if strategy is not None:
        workers = strategy.extended._num_workers
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [
                keras.Input([32]),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
    generator = np.random.default_rng(0)
    batch = EXAMPLES * workers
    x = generator.normal(size=(batch * STEPS, 32)).astype("float32")
    y = generator.integers(0, 10, batch * STEPS)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
    epochs = Epochs()
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[epochs])
    rank = strategy.cluster_resolver.task_id if workers > 1 else 0
    if rank:
        return
    result = {
        # The first epoch traces.
        "step_ms": 1e3 * statistics.median(epochs.wall[1:]),
        "processor_ms": 1e3 * statistics.median(epochs.processor[1:]),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
