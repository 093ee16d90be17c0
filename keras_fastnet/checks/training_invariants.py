"""Invariants of a training run: random numbers, data, resuming and callbacks.

Each function returns what it measured, or raises `InvariantError` if the invariant does
not hold. Its docstring is the name under which the invariant is printed.
"""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BackupAndRestore, LearningRateWarmup
from keras_fastnet.checks.probe import (
    Probe,
    Recorder,
    difference,
    regression,
    require,
    small_model,
)
from keras_fastnet.checks.subject import Subject
from keras_fastnet.text import count


def distinct_masks(probe: Probe, subject: Subject) -> str:
    """each replica drops its own units"""
    size = 64
    ones = np.ones((probe.replicas, size), "float32")
    masks = []
    for _ in range(2):
        with probe.on(cluster=True):
            model = keras.Sequential(
                [keras.Input((size,)), keras.layers.Dropout(0.5, seed=7), _Identity()]
            )
            model.compile(keras.optimizers.SGD(1.0), _sum_of_outputs())
        model.fit(ones, ones, probe.replicas, shuffle=False, verbose=0)
        # The gradient of a scale per unit is the sum of the replicas' masks.
        masks.append(1.0 - model.get_weights()[0])
    # Each replica that keeps a unit adds 2. If all masks are equal, the sums are 0
    # or 2 N.
    kept = set(np.unique(masks[0]).round(3).tolist())
    together = {0.0, 2.0 * probe.replicas}
    require(
        probe.replicas == 1 or not kept <= together,
        f"{probe.replicas} replicas drop the same units",
    )
    require(
        bool(np.array_equal(masks[0], masks[1])),
        "the same seed gives different masks when it is used again",
    )
    return f"{count(probe.replicas, 'replica')}, the same masks from the same seed"


def each_example_once(probe: Probe, subject: Subject) -> str:
    """each example once in every epoch, in one order on all workers"""
    size, epochs = 6 * probe.replicas + 1, 3
    x = np.arange(size, dtype="float32")[:, None]
    model, recorder = _recording(probe)
    # With a seed, Keras alone has one order on all workers.
    tf.random.set_seed(None)
    seen: list[list[float]] = []

    class Cut(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(list(recorder.seen))
            recorder.seen.clear()

    model.fit(
        x, x, batch_size=3 * probe.replicas, epochs=epochs, verbose=0, callbacks=[Cut()]
    )
    totals = _times_seen(probe, [n for order in seen for n in order], size)
    # A replica without an example of its own gets a filler example.
    require(
        bool((totals >= epochs).all()),
        f"some examples were not used: {totals.tolist()}",
    )
    extra = int(totals.sum()) - epochs * size
    require(
        extra <= epochs * (probe.replicas - 1), f"{count(extra, 'example')} too many"
    )
    return f"{size} examples, {epochs} epochs"


def prepared_batches(probe: Probe, subject: Subject) -> str:
    """batches of a PyDataset that threads prepare come once in every epoch"""
    batches, epochs = 25, 2

    class Numbers(keras.utils.PyDataset):
        def __len__(self) -> int:
            return batches

        def __getitem__(self, index: int) -> Any:
            first = index * probe.replicas
            x = np.arange(first, first + probe.replicas, dtype="float32")[:, None]
            return x, x

    model, recorder = _recording(probe)
    model.fit(Numbers(workers=2), epochs=epochs, verbose=0)
    totals = _times_seen(probe, recorder.seen, batches * probe.replicas)
    wrong = int((totals != epochs).sum())
    require(wrong == 0, f"{wrong} of {len(totals)} examples not once in every epoch")
    return f"{batches} batches, {epochs} epochs"


def _recording(probe: Probe) -> tuple[keras.Model, Recorder]:
    """Returns a model on the cluster, and its layer that records the examples."""
    with probe.on(cluster=True):
        recorder = Recorder()
        model = keras.Sequential([keras.Input((1,)), recorder, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model, recorder


def _times_seen(probe: Probe, numbers: list[float], size: int) -> np.ndarray:
    """Returns how often the workers have used each number below `size`."""
    own = np.bincount(np.asarray(numbers, int), minlength=size)
    return np.sum([probe.of_all_workers(float(n)) for n in own], axis=1)


def unequal_shards(probe: Probe, subject: Subject) -> str:
    """workers with unequal data of their own take every step together"""
    rank, workers = probe.strategy.rank, probe.strategy.num_workers
    # One batch on rank 0, two on rank 1 and so on.
    size = 2 * probe.replicas * (rank + 1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    data = tf.data.Dataset.from_tensor_slices(regression(size))
    with probe.on(cluster=True):
        model = small_model()
        model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(data.batch(2 * probe.replicas).with_options(options), epochs=2, verbose=0)
    updates = probe.of_all_workers(float(model.optimizer.iterations.numpy()))
    longest = max(probe.of_all_workers(float(size // (2 * probe.replicas))))
    # TensorFlow cuts each batch into one part per replica, so there may be more
    # updates than batches.
    require(
        len(set(updates)) == 1 and updates[0] >= 2 * longest,
        f"updates by rank: {updates}, of {longest:g} batches in 2 epochs",
    )
    return f"{count(workers, 'worker')}, {updates[0]:g} updates on each in 2 epochs"


def resume(probe: Probe, subject: Subject) -> str:
    """a training that was stopped ends as if it had not been"""
    size = 2 * probe.replicas
    x, y = regression(5 * size)

    class Stop(Exception):
        pass

    class StopAt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise Stop

    def train(folder: str, *callbacks: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(5)
        with probe.on(cluster=True):
            model = small_model(dropout=0.3)
            model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        # A learning rate that depends on the position in the epoch.
        warmup = LearningRateWarmup(0.1, 2, start=0.01)
        backup = BackupAndRestore(folder, save_freq=1)
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(
                *(x, y, size),
                epochs=2,
                verbose=0,
                callbacks=[warmup, backup, *callbacks],
            )
        return model.get_weights()

    with tempfile.TemporaryDirectory() as folder:
        whole = train(str(Path(folder) / "whole"))
        stopped = str(Path(folder) / "stopped")
        try:
            train(stopped, StopAt())
        except Stop:
            resumed = train(stopped)
    apart = difference(resumed, whole)
    require(apart == 0.0, f"weights differ by {apart:.1e}")
    return "stopped within an epoch, resumed bit for bit"


def callbacks_together(probe: Probe, subject: Subject) -> str:
    """one worker writes files, and all stop together"""
    size = 2 * probe.replicas
    x, y = regression(3 * size)
    rank, workers = probe.strategy.rank, probe.strategy.num_workers

    class StopOnTheLast(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = rank == workers - 1

    with probe.on(cluster=True):
        model = small_model()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        model.fit(
            *(x, y, size),
            epochs=3,
            verbose=0,
            callbacks=[StopOnTheLast(), keras.callbacks.CSVLogger(path)],
        )
        written = sum(probe.of_all_workers(float(path.exists())))
    require(written == 1, f"{written:g} of {workers} workers wrote a log")
    updates = probe.of_all_workers(float(model.optimizer.iterations.numpy()))
    require(len(set(updates)) == 1, f"updates by rank: {updates}")
    return f"one log, {updates[0]:g} updates on each of {count(workers, 'worker')}"


def outside_the_scope(probe: Probe, subject: Subject) -> str:
    """a model outside of the strategy's scope does not train alone"""
    model = small_model()
    model.compile("sgd", "mse")
    if probe.replicas == 1:
        return "one replica"
    x, y = regression(4)
    try:
        model.fit(x, y, verbose=0)
    except ValueError as error:
        require("strategy.scope()" in str(error), str(error))
        return "refused"
    require(False, "each worker trained a separate model")
    return ""


class _Identity(keras.layers.Layer):
    """Multiplies each unit by a weight that starts at 1."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.scale


def _sum_of_outputs() -> keras.losses.Loss:
    class Sum(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.sum(y_pred, axis=-1)

    return Sum(reduction="sum")
