"""Trainings on data of which each worker reads or makes its part alone."""

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet
from keras_fastnet.errors import ShardingError
from tests.distributed.jobs import compiled_network, examples, network, scope, state

# The last batch of the data has one example, so that some replicas have none.
COUNT, SIZE, VALIDATION = 4 * 32 + 1, 32, 20


class Parts(keras.utils.PyDataset):
    """Batches of which parts can be made; whole ones only on one device."""

    def __init__(self, x: np.ndarray, y: np.ndarray, alone: bool, **options: Any):
        super().__init__(**options)
        self.x, self.y, self.alone = x, y, alone

    def __len__(self) -> int:
        return -(-len(self.x) // SIZE)

    def __getitem__(self, index: int) -> Any:
        if not self.alone:
            raise NotImplementedError
        return self.part_of_batch(index, 0, self.examples_in_batch(index))

    def examples_in_batch(self, index: int) -> int:
        return min(SIZE, len(self.x) - index * SIZE)

    def part_of_batch(self, index: int, start: int, stop: int) -> Any:
        rows = slice(index * SIZE + start, index * SIZE + stop)
        return self.x[rows], self.y[rows]


def _arguments(
    kind: str, folder: Path, alone: bool, count: int, seed: int
) -> tuple[Any, ...]:
    """Returns the same examples as data of some kind."""
    x, y = examples(count, seed)
    if kind == "arrays":
        return x, y
    if kind == "mapped":
        names = [folder / f"{seed}{name}.npy" for name in "xy"]
        for name, values in zip(names, (x.astype("float64"), y), strict=True):
            np.save(name, values)
        return tuple(np.load(name, mmap_mode="r") for name in names)
    if kind == "parts":
        return (Parts(x, y, alone, workers=2),)
    dataset = tf.data.Dataset.from_tensor_slices((x / 2, y))
    return (dataset.map(lambda image, label: (2 * image, label)).batch(SIZE),)


def fit_growing_on(
    strategy: Any, *, kind: str, max_device_batch: int | None = None
) -> dict[str, Any]:
    """Grows the batch on data of some kind, validates and predicts."""
    with tempfile.TemporaryDirectory() as name:
        data, validation = (
            _arguments(kind, Path(name), strategy is None, count, seed)
            for count, seed in ((COUNT, 0), (VALIDATION, 1))
        )
        with scope(strategy):
            model = network()
            model.compile(
                optimizer=keras_fastnet.LargeBatchOptimizer(keras_fastnet.LARS(1.0)),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
        size = {"batch_size": SIZE} if len(data) == 2 else {}
        growth = keras_fastnet.callbacks.BatchGrowth(
            {0: 32, 1: 64, 2: 128}, max_device_batch=max_device_batch
        )
        history = model.fit(
            *data,
            **size,
            epochs=3,
            shuffle=False,
            verbose=0,
            validation_data=validation if size else validation[0],
            callbacks=[growth],
        )
        return {
            **state(model),
            "history": history.history,
            "predict": model.predict(data[0], verbose=0, **size),
        }


def fit_shuffled_on(strategy: Any, *, kind: str) -> dict[str, Any]:
    """Trains on arrays that Keras shuffles and splits."""
    with tempfile.TemporaryDirectory() as name:
        data = _arguments(kind, Path(name), strategy is None, 71, 0)
        model = compiled_network(strategy)
        if kind == "parts":
            history = model.fit(*data, epochs=2, verbose=0, shuffle=True)
        else:
            options = {"validation_split": 0.25, "class_weight": {0: 1.0, 1: 3.0}}
            history = model.fit(*data, **options, shuffle=False, verbose=0)
        return {**state(model), "history": history.history}


def fit_unlike_parts(strategy: Any, *, kind: str) -> str:
    """Trains on data that differ between workers; returns the error's text."""
    x, y = examples(64)
    if kind == "augmented":
        x = x + np.random.default_rng(strategy.rank).normal(size=x.shape)
    elif kind == "other order":
        x, y = x[:: 1 - 2 * strategy.rank], y[:: 1 - 2 * strategy.rank]
    model = compiled_network(strategy)
    try:
        model.fit(Parts(x.astype("float32"), y, True), verbose=0)
    except ShardingError as error:
        return str(error)
    return ""
