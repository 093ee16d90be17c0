"""What the workers of a `WorkerPool` can be told to do with Keras 2."""

import contextlib
import io
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

import keras_fastnet
from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BatchGrowth, LearningRateWarmup, TrustRatioMonitor


def lars(**options: Any) -> LARS:
    """Returns LARS with rates at which a few updates change every weight."""
    return LARS(2.0, weight_decay=1e-3, trust_coefficient=0.02, **options)


OPTIMIZERS = {
    "lars": lars,
    "clipped": lambda: lars(global_clipnorm=0.5),
    "large": lambda: LargeBatchOptimizer(lars(), 2),
    "growing": lambda: LargeBatchOptimizer(lars()),
}


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random points and what a small network can learn of them."""
    x = np.random.default_rng(0).normal(size=(count, 8)).astype("float32")
    return x, (x[:, :4].sum(1) > x[:, 4:].sum(1)).astype("int64")


def network(strategy: Any, optimizer: Any, *layers: Any) -> keras.Model:
    """Returns a small classifier with the given first layers, compiled."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                *(layer() for layer in layers),
                keras.layers.Dense(16, "tanh"),
                keras.layers.Dense(2, dtype="float32"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, ["accuracy"])
    return model


def _dataset(strategy: Any, kind: str, x: Any, y: Any, batch_size: int) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "shuffled":
        # Without a seed: the strategy gives all workers one.
        return dataset.shuffle(len(x)).batch(batch_size)
    dataset = dataset.batch(batch_size, drop_remainder=True)
    if kind != "from function":
        return dataset
    size = batch_size // strategy.num_workers
    share = dataset.unbatch().batch(size, drop_remainder=True)
    share = share.shard(strategy.num_workers, strategy.rank)
    return strategy.distribute_datasets_from_function(lambda _: share.repeat())


def fit_with_keras_2(
    strategy: Any,
    *,
    optimizer: str = "lars",
    data: str = "arrays",
    count: int = 96,
    batch_size: int = 32,
    epochs: int = 3,
    phases: dict[int, int] | None = None,
    warmup: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Trains the small classifier and returns what came out."""
    if strategy is None and optimizer not in ("lars", "clipped"):
        strategy = keras_fastnet.TorusStrategy()
    x, y = examples(count)
    made = OPTIMIZERS[optimizer]
    model = network(strategy, made)
    callbacks = [LearningRateWarmup(2.0, 1.5)] if warmup else []
    if phases:
        callbacks.append(BatchGrowth(phases))
    options |= {"epochs": epochs, "callbacks": callbacks, "verbose": 0}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        if data == "arrays":
            options.setdefault("shuffle", False)
            history = model.fit(
                x, y, batch_size, validation_data=(x[:40], y[:40]), **options
            )
        else:
            if data == "from function":
                options["steps_per_epoch"] = count // batch_size
            history = model.fit(_dataset(strategy, data, x, y, batch_size), **options)
    return {
        "weights": model.get_weights(),
        "history": history.history,
        "evaluate": model.evaluate(x, y, batch_size, verbose=0),
        "predict": model.predict(x, batch_size, verbose=0),
        "updates": int(model.optimizer.iterations.numpy()),
        "printed": output.getvalue(),
    }


def fits_of_growing_batches(strategy: Any, sizes: list[int]) -> dict[str, Any]:
    """Trains an epoch with each batch size, by LARS alone."""
    x, y = examples(96)
    model = network(None, lars)
    for epoch, size in enumerate(sizes):
        model.fit(
            x,
            y,
            size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            verbose=0,
        )
    return {"weights": model.get_weights()}


def seeded_fit(strategy: Any, seeds: list[int]) -> list[np.ndarray]:
    """Trains on shuffled arrays, with a seed for each rank."""
    keras.utils.set_random_seed(seeds[strategy.rank if strategy else 0])
    model = network(strategy, lars)
    model.fit(*examples(96), 32, epochs=3, verbose=0)
    return model.get_weights()


class _Recorder(keras.layers.Layer):
    """Keeps what its replica was given in training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            tf.py_function(lambda rows: self.seen.append(rows.numpy()), [x], [])
        return x


def masks(strategy: Any) -> list[list[float]]:
    """Returns what this worker's dropout has made of ones."""
    model = network(strategy, lars, lambda: keras.layers.Dropout(0.5), _Recorder)
    model.fit(np.ones((2, 8)), np.ones(2), 2, epochs=3, verbose=0)
    return [rows[0].tolist() for rows in model.layers[1].seen]


def outside_of_the_scope(strategy: Any) -> None:
    """Trains a model that was made outside of the scope."""
    network(None, lars).fit(*examples(32), verbose=0)


def loss_scales(strategy: Any, rows: list[int]) -> list[tuple[float, int]]:
    """Returns scale and updates after each epoch, in which some rows overflow."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        options = {"initial_scale": 8.0, "dynamic_growth_steps": 3}
        model = network(strategy, lambda: LargeBatchOptimizer(lars(), **options))
        scaled = model.optimizer
        found = []
        for row in [None, *rows]:
            x, y = examples(32)
            if row is not None:
                x[row] = np.inf
            model.fit(x, y, 32, shuffle=False, verbose=0)
            scale = float(scaled.dynamic_scale.numpy())
            found.append((scale, int(scaled.iterations.numpy())))
        return found
    finally:
        keras.mixed_precision.set_global_policy("float32")


def trust_ratios(strategy: Any) -> dict[str, list[float]]:
    """Returns what `TrustRatioMonitor` logs."""
    model = network(strategy, lars)
    options = {"shuffle": False, "verbose": 0, "callbacks": [TrustRatioMonitor()]}
    return model.fit(*examples(96), 32, epochs=2, **options).history


def saved_by_all(strategy: Any, folder: str, suffix: str) -> list[Any]:
    """Saves on all workers, each to its own path.

    Returns:
        For the model and the loaded one, its weights and the losses that follow.
    """
    x, y = examples(96)
    model = network(strategy, OPTIMIZERS["large"])
    model.fit(x, y, 32, shuffle=False, verbose=0)
    path = str(pathlib.Path(folder) / f"{strategy.rank}{suffix}")
    model.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    found = []
    for one in (model, loaded):
        weights = one.get_weights()
        history = one.fit(x, y, 32, epochs=2, shuffle=False, verbose=0)
        found.append((weights, history.history["loss"]))
    return found
