"""A training step alone and in the cluster, for `fastnet bench --model`."""

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
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.applications import application_named
from keras_fastnet.scaling.bench_options import BenchOptions

_TIMED_STEPS = 3


class _StepTimes(keras.callbacks.Callback):
    """Seconds from the end of each step to the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return np.diff(self._ends).tolist()


def weak_scaling(
    strategy: TorusStrategy, options: BenchOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    """Times `model.fit` with and without the cluster, in turn.

    While one is timed on this worker it is on all others, so that both have the same
    share of processors and memory.

    Args:
        strategy: The cluster's strategy.
        options: What is to be trained.
        say: Tells the user what is being done.

    Returns:
        The entry of the file.

    Raises:
        UsageError: There is no such model, or none for such images.
    """
    name = options.model or ""
    say(f"{name}: building")
    # Not a OneDeviceStrategy: where both were used in turn, TensorFlow crashed now and
    # then, in a thread of its own.
    alone = _Trainer(train_alone, 1, options)
    together = _Trainer(strategy.scope, strategy.num_replicas_in_sync, options)
    compute: list[float] = []
    steps: list[float] = []
    for turn in range(options.repeats + 1):
        say(f"{name}: round {turn} of {options.repeats}")
        found = alone(), together()
        if turn > 0:  # The first is the one that compiles.
            compute += found[0]
            steps += found[1]
    compute_seconds, step_seconds = map(statistics.median, (compute, steps))
    return {
        "model": name,
        "parameters": together.parameters,
        "batch_per_replica": options.batch,
        "image_size": options.image_size,
        "compute_seconds": compute_seconds,
        "step_seconds": step_seconds,
        "efficiency": compute_seconds / step_seconds,
    }


class _Trainer:
    """Calls a model's `fit` for a few steps, and returns what each took.

    Args:
        scope: Makes the context in which the model is made and trained.
        replicas: How many share a batch.
        options: What is to be trained.
    """

    def __init__(
        self,
        scope: Callable[[], AbstractContextManager],
        replicas: int,
        options: BenchOptions,
    ):
        self._scope = scope
        name = application_named(options.model or "", dir(keras.applications))
        side = options.image_size
        make = getattr(keras.applications, name)
        examples = options.batch * replicas
        with scope():
            try:
                self._model = make(weights=None, input_shape=(side, side, 3))
            except ValueError as error:
                raise UsageError(
                    "--image-size must be one that the model takes. Received: "
                    f"--model {name} --image-size {side} ({error}). "
                    "Choose a larger one."
                ) from error
            self._model.compile(
                optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
                loss="sparse_categorical_crossentropy",
                # Not with XLA in one of the two only.
                jit_compile=False,
            )
        generator = np.random.default_rng(0)
        images = generator.standard_normal((examples, side, side, 3), dtype="float32")
        labels = generator.integers(0, self._model.output_shape[-1], examples)
        # The same batch for ever, so that no time goes into making data.
        self._data = tf.data.Dataset.from_tensors((images, labels)).repeat()
        self.parameters = sum(
            int(np.prod(w.shape)) for w in self._model.trainable_weights
        )

    def __call__(self) -> list[float]:
        times = _StepTimes()
        # The end of the first step starts the clock.
        with self._scope():
            self._model.fit(
                self._data,
                steps_per_epoch=1 + _TIMED_STEPS,
                callbacks=[times],
                shuffle=False,
                verbose=0,
            )
        return times.seconds
