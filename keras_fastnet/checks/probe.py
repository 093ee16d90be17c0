"""Small models and data that show what a strategy does."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import train_alone
from keras_fastnet.strategies import TorusStrategy, TPUStrategy


class Recorder(keras.layers.Layer):
    """Notes the first feature of the examples that it is given in training."""

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
    """A network of one layer that writes its own train and test steps.

    Its loss has a mean taken by hand, one taken by Keras, a declared sum, and a value
    for each example that is given to `add_loss`.
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
        """Updates with a batch; returns the loss before.

        Keras knows `loss` as its own, and would replace it.
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
    """Trains the same on the cluster and on one device, in the same process.

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
        """Makes and trains models on the cluster or on one device.

        Args:
            cluster: Which of the two.
        """
        # Not a OneDeviceStrategy: where both were used in turn, TensorFlow crashed now
        # and then, in a thread of its own.
        with self.strategy.scope() if cluster else train_alone():
            yield

    def of_all_workers(self, value: float) -> list[float]:
        """Returns a number of each worker, by rank. All of them must ask.

        Args:
            value: This worker's.
        """
        own = int(np.float64(value).view(np.int64))
        numbers = self.strategy.of_all_workers(tf.constant([own], tf.int64))
        return [float(np.int64(n).view(np.float64)) for (n,) in numbers]


def difference(mine: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Returns the largest difference between weights.

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
def in_float64() -> Iterator[None]:
    """Makes models in float64, where they leave that open: rounding matters less."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def small_model(dropout: float = 0.0) -> keras.Model:
    """Returns a network of two layers, not compiled.

    Args:
        dropout: The rate between them.
    """
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh")]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def regression(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns what it can learn.

    Args:
        count: Number of examples.
    """
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)
