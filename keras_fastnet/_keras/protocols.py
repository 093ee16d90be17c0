"""What takes part in Keras's loops: strategies, optimizers and callbacks of ours."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import tensorflow as tf


class HookedStrategy:
    """What the hooks ask a `tf.distribute.Strategy` for. A mixin."""

    step: Any
    """This thread's `ReplicaStep`."""
    scalar_losses = "mean"
    """What a scalar from a loss function is: the `"mean"` over a replica's examples, or
    their `"sum"`."""
    compiles_all = False
    """Whether XLA compiles every step as a whole, as on TPUs, with static shapes."""

    @property
    def rank(self) -> int:
        """This worker's position."""
        raise NotImplementedError

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        raise NotImplementedError

    def epoch_data(self, dataset: Any) -> Any:
        """Returns what Keras iterates over in one epoch."""
        raise NotImplementedError

    def agreed_batches(self, dataset: Any, own: int | None) -> int | None:
        """Returns the steps of an epoch, equal on all workers."""
        raise NotImplementedError

    def peek(self, data: Any) -> Any:
        """Returns a first batch of a result of `epoch_data`, without taking it."""
        raise NotImplementedError

    def reduced_gradients(self, gradients: list[Any]) -> AbstractContextManager:
        """Sums the gradients over all replicas, for the time of the context."""
        raise NotImplementedError

    def begin_fit(self, model: Any, data: Any, verbose: bool) -> None:
        """Looks once more before training, and says what it is going to do."""
        raise NotImplementedError

    def note_scalar_loss(self) -> None:
        """Says once that a loss function returns a scalar, and what it is taken for."""
        raise NotImplementedError

    def any_worker(self, own: bool) -> bool:
        """Returns whether something holds on any worker."""
        raise NotImplementedError

    def of_all_workers(self, own: tf.Tensor) -> list[list[int]]:
        """Returns integers of each worker, by rank."""
        raise NotImplementedError

    def from_chief(self, data: bytes) -> bytes:
        """Returns the chief's bytes, on all workers."""
        raise NotImplementedError

    def own_rows(self, batch: int) -> tuple[int, int]:
        """Returns which rows of a global batch this replica takes."""
        raise NotImplementedError

    def alone(self) -> AbstractContextManager[None]:
        """Returns a context for what this worker does without the others.

        What is made in it belongs to this worker, also within `scope()`.
        """
        raise NotImplementedError

    def replica_seed(self, seed: Any) -> Any:
        """Returns this replica's own seed from one that all replicas have."""
        raise NotImplementedError


class HookedOptimizer:
    """What the hooks ask a Keras optimizer for. A mixin."""

    def epoch_data(self, dataset: Any) -> Any:
        """Returns what Keras iterates over in one epoch, on one device."""
        raise NotImplementedError

    def counted_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a model's train step, on one device."""
        raise NotImplementedError

    def begin_epoch(self) -> None:
        """Called before the first step of an epoch of `fit`."""
        raise NotImplementedError

    def end_epoch(self) -> None:
        """Called after the last step of an epoch of `fit`, before validation."""
        raise NotImplementedError

    def retrace(self) -> None:
        """Forgets what was traced beside the train function."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """A train, test or predict step of a Keras model.

    Attributes:
        model: The model.
        function: The step, a Python function of a batch.
        kind: What it does.
    """

    model: Any
    function: Callable[[Any], Any]
    kind: Literal["train", "test", "predict"]

    def __call__(self, batch: Any) -> Any:
        """Runs the step, as Keras does.

        Args:
            batch: The batch, in the user's structure.
        """
        return self.function(batch)


class HookedCallback:
    """A callback that knows those beside it. A mixin."""

    siblings: Sequence[Any] = ()
    """The callbacks of the list that it is in."""
    hidden_logs: tuple[str, ...] = ()
    """Prefixes of logs that the progress bar does not show."""


def in_replica() -> HookedStrategy | None:
    """Returns the strategy in whose replica this code runs, if it is one of ours."""
    if tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, HookedStrategy) else None


def in_scope_only() -> Any:
    """Returns the `HookedStrategy` in whose scope, outside replicas, this code runs."""
    if not tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, HookedStrategy) else None


def keras_step() -> Any:
    """Returns the `ReplicaStep` of the Keras step that this code is part of, if any."""
    strategy = in_replica()
    return None if strategy is None or strategy.step.share is None else strategy.step


@contextlib.contextmanager
def reduced(gradients: list[Any], *, weighed: bool = False) -> Iterator[list[Any]]:
    """Sums gradients over the replicas, unless they are sums already.

    In a step of Keras each replica's gradient is that of a mean over its own examples,
    and is multiplied by the replica's share of the global batch first.

    Args:
        gradients: This replica's, `None` where there is none.
        weighed: Whether the caller has multiplied them by the share. Defaults to
            `False`.

    Yields:
        The sums. Optimizers that are called within take them as such.
    """
    strategy = in_replica()
    if strategy is None or strategy.step.reduced:
        yield gradients
        return
    step = keras_step()
    if step is not None and not weighed:
        gradients = [None if g is None else step.weigh(g) for g in gradients]
    with strategy.reduced_gradients(gradients) as sums:
        yield sums


def compiled(part: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a part of a step, compiled by XLA where the model asks for that.

    Args:
        part: A function of tensors and variables that it holds, without collectives.
    """
    step = keras_step()
    if step is None or not step.compiled:
        return part

    @tf.function(jit_compile=True, autograph=False)
    def compiled_part() -> Any:
        with step.within_compiled():
            return part()

    return compiled_part


def counts_alone(model: Any) -> bool:
    """Whether an optimizer has to be told, on one device, what a step holds.

    Args:
        model: A compiled model, or one without an optimizer.
    """
    return (
        isinstance(getattr(model, "optimizer", None), HookedOptimizer)
        and model.distribute_strategy.num_replicas_in_sync == 1
    )


def seed_offset(replica: Any) -> Any:
    """Returns what to add to a seed for a replica: nothing for the first.

    Args:
        replica: Its number, an integer or an `int64` tensor.
    """
    # Odd, and near 2**31 divided by the golden ratio: spreads the replicas.
    return replica * 1_327_217_885 % 2**31


def compiles_itself(model: Any) -> bool:
    """Whether it is not Keras that has XLA compile a model's steps.

    Args:
        model: A compiled model.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    return strategy_of(model) is not None and replicas > 1


def compiles_parts(model: Any) -> bool:
    """Whether XLA compiles the parts of a model's steps, and not them as a whole.

    Args:
        model: A compiled model.
    """
    return (
        compiles_itself(model)
        and not model.distribute_strategy.compiles_all
        and bool(model.jit_compile)
    )


def strategy_of(model: Any) -> HookedStrategy | None:
    """Returns a model's strategy, if it is one of ours.

    Args:
        model: A Keras model, or `None`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if isinstance(strategy, HookedStrategy) else None
