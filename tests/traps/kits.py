"""The two ways of training that the scenarios compare."""

import contextlib
from typing import Any

import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.batches.global_batch import GlobalBatch, with_examples


class Ours:
    """Trains with keras_fastnet."""

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy = strategy or keras_fastnet.TorusStrategy(start_timeout=60.0)

    def accumulating(self, make: Any, steps: int) -> keras.optimizers.Optimizer:
        """Returns an optimizer that accumulates several micro-batches per update."""
        return keras_fastnet.LargeBatchOptimizer(make(), steps)

    def one_device(self) -> Any:
        """Returns the scope in which models for one device are created."""
        device = self.strategy.extended.worker_devices[0]
        return tf.distribute.OneDeviceStrategy(device).scope()

    def backup(self, folder: str) -> keras.callbacks.Callback:
        """Returns a callback that writes a backup after every update."""
        return keras_fastnet.callbacks.BackupAndRestore(folder, save_freq=1)

    def growing(self, x: Any, y: Any) -> dict[str, Any]:
        """Returns arguments of `fit` that double the batch of 4 in epoch 1."""
        growth = keras_fastnet.callbacks.BatchGrowth({0: 4, 1: 8})
        return {"x": x, "y": y, "batch_size": 4, "callbacks": [growth]}

    def train(self, model: keras.Model, x: Any, y: Any) -> None:
        """Makes one update on all workers together."""
        model.fit(x, y, batch_size=len(x), verbose=0)

    def batches(self, dataset: tf.data.Dataset) -> list[tuple[list[float], int]]:
        """Returns, per step, this worker's examples and the number of all workers'."""
        distributed = self.strategy.experimental_distribute_dataset(dataset)
        found = []
        with contextlib.suppress(tf.errors.OutOfRangeError):
            for step in iter(self.strategy.fit_support.data.epoch_data(distributed)):
                if not isinstance(step, GlobalBatch):
                    # What a step cuts its share of.
                    place = self.strategy.extended.position(0)
                    replicas = self.strategy.num_replicas_in_sync
                    step = with_examples(step, place, replicas)
                local = self.strategy.experimental_local_results
                data, own, total = (local(part)[0].numpy() for part in step[:3])
                found.append((data.ravel()[:own].tolist(), int(total)))
        return found


class Stock:
    """Trains with unmodified Keras and TensorFlow."""

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy = strategy or tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def accumulating(self, make: Any, steps: int) -> keras.optimizers.Optimizer:
        return make(gradient_accumulation_steps=steps)

    def one_device(self) -> Any:
        return contextlib.nullcontext()

    def backup(self, folder: str) -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(folder, save_freq=1)

    def growing(self, x: Any, y: Any) -> dict[str, Any]:
        class Growing(keras.utils.PyDataset):
            size = 4

            def __len__(self) -> int:
                return -(-len(x) // self.size)

            def __getitem__(self, index: int) -> Any:
                rows = slice(index * self.size, (index + 1) * self.size)
                return x[rows], y[rows]

            def on_epoch_end(self) -> None:
                self.size = 8

        return {"x": Growing(), "shuffle": False}

    def train(self, model: keras.Model, x: Any, y: Any) -> None:
        # Keras's own `fit` fails on several workers (keras#20585).
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)

        with self.strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self.strategy.run(tf.function(step))

    def batches(self, dataset: tf.data.Dataset) -> list[tuple[list[float], int]]:
        distributed = self.strategy.experimental_distribute_dataset(dataset)
        local = self.strategy.experimental_local_results
        steps = [local(step)[0].numpy().ravel().tolist() for step in distributed]
        # Stock TensorFlow does not count the examples of a step.
        return [(step, -1) for step in steps]
