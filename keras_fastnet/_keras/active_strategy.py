"""The strategy of keras_fastnet that a model or the running code belongs to."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf


class FastnetStrategy:
    """A `tf.distribute.Strategy` of keras_fastnet.

    Attributes:
        fit_support: A `FitSupport`: what the changed functions of Keras ask of it.
    """

    extended: Any
    fit_support: Any

    @property
    def rank(self) -> int:
        """This worker's rank in the cluster, from 0 (the chief)."""
        return self.extended.rank

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self.extended.workers


class MicroBatchOptimizer:
    """An optimizer that makes one update of several micro-batches.

    Attributes:
        replica_variables: Variables of which each replica has a value of its own.
    """

    replica_variables: Any

    def begin_epoch(self) -> None:
        """Called before the first step of an epoch of `fit`."""

    def end_epoch(self) -> None:
        """Called after the last step of an epoch of `fit`, before validation."""

    def retrace(self) -> None:
        """Forgets what was traced beside the train function."""

    def counting(self, examples: tf.Tensor) -> AbstractContextManager[None]:
        """A context in which `fit` trains on a micro-batch of one device."""
        raise NotImplementedError


def strategy_of(model: Any) -> FastnetStrategy | None:
    """Returns a model's strategy if it is of keras_fastnet, else `None`."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if isinstance(strategy, FastnetStrategy) else None


def in_replica() -> Any:
    """Returns the keras_fastnet strategy in whose replica this code runs, if any."""
    return None if tf.distribute.in_cross_replica_context() else _entered()


def in_scope_only() -> Any:
    """Returns the strategy in whose scope, outside replicas, this code runs, if any."""
    return _entered() if tf.distribute.in_cross_replica_context() else None


def _entered() -> Any:
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, FastnetStrategy) else None


def counts_alone(model: Any) -> bool:
    """Returns whether an optimizer counts the examples of each step on one device."""
    return (
        isinstance(getattr(model, "optimizer", None), MicroBatchOptimizer)
        and model.distribute_strategy.num_replicas_in_sync == 1
    )
