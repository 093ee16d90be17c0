"""`Probe`, which trains on the cluster or on one device, and models to train."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import train_alone
from keras_fastnet.strategies import TorusStrategy, TPUStrategy


class InvariantError(Exception):
    """An invariant does not hold. The message states what was measured."""


def require(holds: bool, measured: str) -> None:
    """Raises `InvariantError` if an invariant does not hold.

    Args:
        holds: Whether it holds.
        measured: The message: what was measured.
    """
    if not holds:
        raise InvariantError(measured)


class Recorder(keras.layers.Layer):
    """Records the first feature of each training example that passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns its input."""
        if training:
            tf.py_function(
                lambda ids: self.seen.extend(ids.numpy().tolist()), [x[:, 0]], []
            )
        return x


class OwnSteps(keras.Model):
    """A one-layer model with custom `train_step` and `test_step`.

    Its loss adds up a mean computed by hand, a mean computed by Keras, a loss with
    `reduction="sum"`, and one value per example passed to `add_loss`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        """Returns predictions of shape `(batch, 1)`."""
        outputs = self.dense(x)
        self.add_loss(keras.ops.mean(outputs**2, axis=1))
        return outputs

    def train_step(self, data: Any) -> dict[str, Any]:
        """Updates the weights with a batch and returns the loss before the update.

        The loss is logged as `total`: Keras would overwrite a log named `loss`.
        """
        with tf.GradientTape() as tape:
            loss = self._total(*data)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return {"total": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        """Returns the loss."""
        return {"total": self._total(*data)}

    def _total(self, x: Any, y: Any) -> Any:
        predicted = self(x)
        by_hand = keras.ops.mean((y - predicted) ** 2)
        summed = keras.losses.MeanSquaredError(reduction="sum")(y, predicted)
        return by_hand + 0.1 * summed + self.compute_loss(x, y, predicted)


class Probe:
    """Trains models on the cluster or on one device, in the same process.

    Args:
        strategy: The cluster's strategy.
    """

    def __init__(self, strategy: TorusStrategy | TPUStrategy):
        self.strategy = strategy

    @property
    def replicas(self) -> int:
        """Number of replicas in sync."""
        return self.strategy.num_replicas_in_sync

    @contextlib.contextmanager
    def on(self, cluster: bool) -> Iterator[None]:
        """Returns a context in which models are built and trained.

        Args:
            cluster: `True` for the cluster, `False` for one device.
        """
        # Not a OneDeviceStrategy: alternating between the two strategies sometimes
        # crashed TensorFlow in one of its threads.
        with self.strategy.scope() if cluster else train_alone():
            yield

    def of_all_workers(self, value: float) -> list[float]:
        """Returns one number from each worker, by rank. Call it on all workers.

        Args:
            value: This worker's number.
        """
        own = int(np.float64(value).view(np.int64))
        numbers = self.strategy.fit_support.workers.values_of_all(
            tf.constant([own], tf.int64), "a check"
        )
        return [float(np.int64(n).view(np.float64)) for (n,) in numbers]


def difference(mine: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Returns the largest absolute difference between two lists of weights.

    Args:
        mine: Weights.
        theirs: Weights of the same shapes.
    """
    differences = [
        float(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max())
        for a, b in zip(mine, theirs, strict=True)
        if np.size(a)
    ]
    return max(differences, default=0.0)


@contextlib.contextmanager
def dtypes_restored() -> Iterator[None]:
    """Restores Keras's default dtype and policy at the end of the context."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Sets Keras's default dtype to float64, to reduce rounding errors."""
    with dtypes_restored():
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        yield


def small_model(dropout: float = 0.0) -> keras.Model:
    """Returns a two-layer network, not compiled.

    Args:
        dropout: The dropout rate between the layers. Defaults to `0.0`.
    """
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh")]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def regression(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets that `small_model` can learn.

    Args:
        count: The number of examples.
    """
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)
