"""The strategy of keras_fastnet that a model or the running code belongs to."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf


@runtime_checkable
class FastnetStrategy(Protocol):
    """A `tf.distribute.Strategy` of keras_fastnet."""

    @property
    def fit_support(self) -> Any:
        """A `FitSupport`: what the changed functions of Keras ask of a strategy."""

    @property
    def rank(self) -> int:
        """This worker's rank."""
        ...

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        ...


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
    if tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, FastnetStrategy) else None


def in_scope_only() -> Any:
    """Returns the strategy in whose scope, outside replicas, this code runs, if any."""
    if not tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, FastnetStrategy) else None


def counts_alone(model: Any) -> bool:
    """Returns whether an optimizer counts the examples of each step on one device."""
    return (
        isinstance(getattr(model, "optimizer", None), MicroBatchOptimizer)
        and model.distribute_strategy.num_replicas_in_sync == 1
    )


def compiles_itself(model: Any) -> bool:
    """Returns whether keras_fastnet, not Keras, applies XLA to a model's steps."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    return strategy_of(model) is not None and replicas > 1


def compiles_parts(model: Any) -> bool:
    """Returns whether XLA compiles a model's steps in parts, not as a whole."""
    return (
        compiles_itself(model)
        and not model.distribute_strategy.fit_support.compiles_all
        and bool(model.jit_compile)
    )
