"""The places where Keras 3 has to learn about several workers.

Keras offers no public seam here, so a few methods are wrapped, once, when the first
`TorusStrategy` is made. Every wrapper asks whether such a strategy is active and
otherwise calls Keras's own code, so that nothing else changes. keras#20585 is the
thread whose end would let this file go.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator


def layer_state(model: keras.Model) -> list[keras.Variable]:
    """Returns what layers keep for themselves, such as moving statistics.

    Not the weights of frozen layers, which Keras also calls non-trainable; nor
    counters and random states, which are integers; nor what a stateful recurrent
    layer remembers of each example.

    Args:
        model: A built model.

    Returns:
        Variables that a step may set to another value on every replica.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if not isinstance(layer, keras.layers.RNN)
        for variable in layer._non_trainable_variables
        if variable.aggregation == "none"
        and keras.backend.is_float_dtype(variable.dtype)
    ]


class HookedStrategy(Protocol):
    """What the hooks need from a strategy."""

    def epoch_data(self, dataset: Any) -> Any:
        """Returns what Keras iterates over in one epoch."""

    def agreed_batches(self, dataset: Any, own: int | None) -> int | None:
        """Returns the steps of an epoch, equal on all workers."""

    def peek(self, data: Any) -> Any:
        """Returns a first batch of a result of `epoch_data`, without taking it."""

    @property
    def step(self) -> Any:
        """This thread's `ReplicaStep`."""

    def reduced_gradients(self, gradients: list[Any]) -> Any:
        """Context manager that yields the gradients' sums over all replicas."""

    def replica_seed(self, seed: Any) -> Any:
        """Returns this replica's own seed from one that all replicas have."""


def install(strategy_class: Any) -> None:
    """Wraps the Keras methods for strategies of `strategy_class`. Idempotent.

    Args:
        strategy_class: A `tf.distribute.Strategy` that is a `HookedStrategy`.
    """
    if getattr(tf_trainer.TFEpochIterator, "_fastnet_hooked", False):
        return
    tf_trainer.TFEpochIterator._fastnet_hooked = True

    def active() -> HookedStrategy | None:
        strategy = tf.distribute.get_strategy()
        return strategy if isinstance(strategy, strategy_class) else None

    def in_replica() -> HookedStrategy | None:
        return None if tf.distribute.in_cross_replica_context() else active()

    def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            raise ImportError(
                "keras_fastnet supports Keras 3.10 to 3.15, whose insides it adapts to "
                f"several workers. Received: Keras {keras.__version__}, where "
                f"`{owner.__name__}.{name}` is missing. Install another Keras, or a "
                "newer keras_fastnet."
            )
        setattr(owner, name, functools.wraps(original)(make(original)))

    # The examples of one step: Keras takes whatever shares TensorFlow deals out, and
    # runs its own iterator once more than there are batches (trap: empty updates).
    def with_epoch_data(original):
        def __init__(self, *args, **kwargs):
            original(self, *args, **kwargs)
            strategy = self._distribute_strategy
            if not isinstance(strategy, strategy_class):
                return
            dataset = self._distributed_dataset
            self._fastnet_data = strategy.epoch_data(dataset)
            self._fastnet_batches = strategy.agreed_batches(dataset, self._num_batches)
            self._num_batches = self._fastnet_batches

        return __init__

    def epoch_data(original):
        def _get_iterator(self):
            return getattr(self, "_fastnet_data", None) or original(self)

        return _get_iterator

    def keep_batches(original):
        def reset(self):
            original(self)
            if hasattr(self, "_fastnet_batches"):
                self._num_batches = self._fastnet_batches

        return reset

    wrap(tf_trainer.TFEpochIterator, "__init__", with_epoch_data)
    wrap(tf_trainer.TFEpochIterator, "_get_iterator", epoch_data)
    wrap(tf_trainer.TFEpochIterator, "reset", keep_batches)

    # The first batch, which Keras takes to build the model and then drops; it also
    # averages it over the replicas, which fails for structures and unequal shares.
    def peek(original):
        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            strategy = self._distribute_strategy
            if iterator is not None and isinstance(strategy, strategy_class):
                data_batch = strategy.peek(iterator._get_iterator())
                iterator = None
            return original(self, iterator=iterator, data_batch=data_batch)

        return _maybe_symbolic_build

    wrap(tf_trainer.TensorFlowTrainer, "_maybe_symbolic_build", peek)

    # The weight of a replica in the mean: Keras gives every replica 1/N, however few
    # examples it has.
    def scaled(method):
        def make(original):
            def scale(value):
                strategy = in_replica()
                if strategy is None or strategy.step.share is None:
                    return original(value)
                return getattr(strategy.step, method)(value)

            return scale

        return make

    wrap(keras_loss, "scale_loss_for_distribution", scaled("weigh"))
    wrap(keras_loss, "unscale_loss_for_distribution", scaled("unweigh"))

    # The sum over replicas comes first: Keras unscales, tests for overflow and clips
    # each replica's own gradients (tensorflow#33929, horovod#1346).
    def reduce_first(original):
        def apply(self, grads, trainable_variables=None):
            strategy = in_replica()
            if strategy is None or strategy.step.reduced:
                return original(self, grads, trainable_variables)
            with strategy.reduced_gradients(grads) as sums:
                return original(self, sums, trainable_variables)

        return apply

    wrap(base_optimizer.BaseOptimizer, "apply", reduce_first)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "apply", reduce_first)

    def sum_once(original):
        def _all_reduce_sum_gradients(self, grads_and_vars):
            strategy = in_replica()
            if strategy is not None and strategy.step.reduced:
                return list(grads_and_vars)
            return original(self, grads_and_vars)

        return _all_reduce_sum_gradients

    wrap(tf_optimizer.TFOptimizer, "_all_reduce_sum_gradients", sum_once)

    # Random streams: all replicas hold the same seed state, and so drop the same
    # units.
    def own_stream(original):
        def next(self, ordered=True):
            seed = original(self, ordered)
            strategy = in_replica()
            return strategy.replica_seed(seed) if strategy else seed

        return next

    wrap(seed_generator.SeedGenerator, "next", own_stream)
