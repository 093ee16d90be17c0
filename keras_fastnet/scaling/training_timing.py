"""Times a training step alone and in the cluster, for `fastnet bench --model`."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet import TorusStrategy
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import train_alone
from keras_fastnet.scaling.applications import application
from keras_fastnet.scaling.memory import trained

_TIMED_STEPS = 3


class _StepTimes(keras.callbacks.Callback):
    """Records the seconds from the end of each step to the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return np.diff(self._ends).tolist()


def weak_scaling(
    strategy: TorusStrategy, name: str, *, batch: int, image_size: int, rounds: int
) -> dict[str, Any]:
    """Times `model.fit` with and without the cluster, in turn.

    All workers time the same of the two at the same time, so that both have the same
    share of processors and memory.

    Args:
        strategy: The cluster's strategy.
        name: The model: one of Keras's applications.
        batch: Images of a replica in a step.
        image_size: Their height and width.
        rounds: The number of rounds.

    Returns:
        The entry `weak_scaling` of the results.

    Raises:
        UsageError: If there is no such model, or it cannot take images of this size.
    """
    replicas = strategy.num_replicas_in_sync
    # Not a OneDeviceStrategy: alternating between the two strategies sometimes crashed
    # TensorFlow in one of its threads.
    alone = _Trainer(train_alone, name, batch, image_size)
    together = _Trainer(strategy.scope, name, batch * replicas, image_size)
    compute: list[float] = []
    steps: list[float] = []
    for turn in range(rounds + 1):
        found = alone(), together()
        if turn > 0:  # The first round compiles.
            compute += found[0]
            steps += found[1]
    compute_seconds, step_seconds = map(statistics.median, (compute, steps))
    return {
        "model": together.name,
        "parameters": trained(together.model),
        "batch_per_replica": batch,
        "image_size": image_size,
        "compute_seconds": compute_seconds,
        "step_seconds": step_seconds,
        "efficiency": compute_seconds / step_seconds,
    }


class _Trainer:
    """Calls a model's `fit` for a few steps and returns the seconds of each.

    Args:
        scope: Returns the context in which the model is built and trained.
        name: The model.
        examples: The global batch.
        side: Height and width of an image.
    """

    def __init__(
        self,
        scope: Callable[[], AbstractContextManager],
        name: str,
        examples: int,
        side: int,
    ):
        self._scope = scope
        with scope():
            self.name, self.model = application(name, input_shape=(side, side, 3))
            self.model.compile(
                optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
                loss="sparse_categorical_crossentropy",
                # Keras might use XLA in one of the two only.
                jit_compile=False,
            )
        generator = np.random.default_rng(0)
        images = generator.standard_normal((examples, side, side, 3), dtype="float32")
        labels = generator.integers(0, self.model.output_shape[-1], examples)
        # Repeats one batch, so that no time is spent on making data.
        self._data = tf.data.Dataset.from_tensors((images, labels)).repeat()

    def __call__(self) -> list[float]:
        times = _StepTimes()
        # The end of the first step starts the clock.
        with self._scope():
            self.model.fit(
                self._data,
                steps_per_epoch=1 + _TIMED_STEPS,
                callbacks=[times],
                shuffle=False,
                verbose=0,
            )
        return times.seconds
