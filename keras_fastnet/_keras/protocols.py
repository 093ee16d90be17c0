"""What the patched Keras code asks of strategies, optimizers and callbacks."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import tensorflow as tf


class EpochElements(Protocol):
    """The elements of every epoch; see `EpochData`."""

    sharding: str
    element_spec: Any
    marks_sources: bool
    batches_per_step: int
    steps_per_call: int
    peeking: Callable[[], AbstractContextManager[None]] | None

    def peek(self) -> Any:
        """Returns the first element, which the next iteration yields again."""

    def examples_of_first(self) -> int:
        """Returns the number of examples in the first element."""
        ...

    def fingerprint_of_first(self) -> list[int]:
        """Returns a hash of each tensor in the first element."""
        ...

    def skip(self, elements: int) -> None:
        """Leaves out the next elements of the coming epoch."""

    def pass_epoch(self) -> None:
        """Leaves out an epoch."""

    def __iter__(self) -> Iterator[Any]: ...


class RowsOfArrays(Protocol):
    """Arrays and which of their rows make a batch; see `ArrayRows`."""

    numbers: tf.data.Dataset

    def read(self, numbers: tf.Tensor) -> Any:
        """Returns some rows of each array, in a graph."""


class PartsOfBatches(Protocol):
    """Batches that can be made in parts; see `BatchParts`."""

    def parts(
        self,
        bounds: Callable[[int], list[tuple[int, int]]],
        mark: Callable[[Any, int], tf.Tensor],
    ) -> tf.data.Dataset:
        """Returns parts of every batch, as a tuple."""
        ...

    def first_whole(self) -> Any:
        """Returns the first batch, as a whole."""


class WorkerExchange(Protocol):
    """Values that the workers tell one another, each of them calling at once."""

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of one value of each worker."""
        ...

    def gather(self, own: str, purpose: str, *, last: bool = False) -> list[str]:
        """Returns a text of each worker, by rank."""
        ...

    def any(self, own: bool, purpose: str) -> bool:
        """Returns whether something holds on any worker."""
        ...

    def values_of_all(self, own: tf.Tensor, purpose: str) -> list[list[int]]:
        """Returns integers of each worker, by rank."""
        ...

    def from_chief(self, data: bytes) -> bytes:
        """Returns the chief's bytes, on all workers."""
        ...


class FitData(Protocol):
    """The data of Keras's loops."""

    def epoch_data(self, dataset: Any) -> EpochElements:
        """Returns what Keras iterates over in one epoch."""
        ...

    def agreed_batches(self, dataset: Any, own: int | None) -> int | None:
        """Returns the steps of an epoch, equal on all workers."""
        ...

    def peek(self, elements: Any) -> Any:
        """Returns a first batch of a result of `epoch_data`, without taking it."""

    def several_steps(
        self, function: Callable[[Iterator[Any]], Any], steps: int
    ) -> Callable[[Iterator[Any]], Any]:
        """Returns a train or test function that takes several steps in a call."""
        ...


class FitSupport(Protocol):
    """What the patched Keras code asks of a strategy, as `strategy.fit_support`."""

    @property
    def data(self) -> FitData:
        """Distributes the data of Keras's loops."""
        ...

    @property
    def workers(self) -> WorkerExchange:
        """Exchanges values between workers."""
        ...

    @property
    def scalar_losses(self) -> Literal["mean", "sum"]:
        """A scalar from a loss function is this over a replica's examples."""
        ...

    @property
    def compiles_all(self) -> bool:
        """Whether XLA compiles each step as a whole, as on TPUs, with static shapes."""
        ...

    def calling(
        self,
        method: Callable[..., Any],
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> AbstractContextManager[None]:
        """Returns a context for `fit`, `evaluate` or `predict`; compares the calls."""
        ...

    def note(self, text: str, *numbers: int) -> None:
        """Records what this worker is doing: a text, with `{}` for each number."""

    def begin_fit(self, model: Any, data: Any, verbose: bool, rate_set_by: str) -> None:
        """Checks a training before its first step; the chief prints a summary."""

    def begin_test(self, model: Any, call: Literal["evaluate", "predict"]) -> None:
        """Checks before the first step of `evaluate` or `predict`."""

    def end_epoch(self, model: Any, epoch: int, stop: bool) -> bool:
        """Compares the workers' weights; returns whether any wants to stop."""
        ...

    def note_scalar_loss(self) -> None:
        """Prints once how a scalar from a loss function is interpreted."""

    def own_rows(self, batch: int) -> tuple[int, int]:
        """Returns which rows of a global batch this replica takes."""
        ...

    def replica_seed(self, seed: Any) -> Any:
        """Returns this replica's own seed from one that all replicas have."""

    def alone(self) -> AbstractContextManager[None]:
        """Returns a context in which variables are made for this worker alone."""
        ...


@runtime_checkable
class FastnetStrategy(Protocol):
    """A `tf.distribute.Strategy` of keras_fastnet."""

    @property
    def fit_support(self) -> FitSupport:
        """What the patched Keras code asks of it."""
        ...

    @property
    def rank(self) -> int:
        """This worker's rank."""
        ...

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        ...


@runtime_checkable
class MicroBatchOptimizer(Protocol):
    """An optimizer that makes one update of several micro-batches."""

    @property
    def replica_variables(self) -> Sequence[Any]:
        """Variables of which each replica has a value of its own."""
        ...

    def epoch_data(self, dataset: Any) -> Any:
        """Returns what Keras iterates over in one epoch, on one device."""

    def several_steps(
        self, function: Callable[[Iterator[Any]], Any], steps: int
    ) -> Callable[[Iterator[Any]], Any]:
        """Returns a train or test function that takes several steps in a call."""
        ...

    def counted_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a model's train step, on one device."""
        ...

    def begin_epoch(self) -> None:
        """Called before the first step of an epoch of `fit`."""

    def end_epoch(self) -> None:
        """Called after the last step of an epoch of `fit`, before validation."""

    def retrace(self) -> None:
        """Forgets what was traced beside the train function."""


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


class FastnetCallback:
    """A callback of keras_fastnet."""

    only_watches = False
    """Whether it changes nothing in training, so that workers may differ in it."""
    siblings: Sequence[Any] = ()
    """The callbacks of the list that it is in."""
    sets_learning_rate = False
    """Whether it sets the optimizer's learning rate from the first update on."""
    adds_logs = False
    """Whether it adds values to the logs of epochs, and does nothing else with them."""
    hidden_logs: tuple[str, ...] = ()
    """Prefixes of logs that the progress bar does not show."""


def in_replica() -> FastnetStrategy | None:
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
    """Returns whether an optimizer counts the examples of each step on one device.

    Args:
        model: A compiled model, or one without an optimizer.
    """
    return (
        isinstance(getattr(model, "optimizer", None), MicroBatchOptimizer)
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
    """Returns whether keras_fastnet, not Keras, applies XLA to a model's steps.

    Args:
        model: A compiled model.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    return strategy_of(model) is not None and replicas > 1


def compiles_parts(model: Any) -> bool:
    """Returns whether XLA compiles a model's steps in parts, not as a whole.

    Args:
        model: A compiled model.
    """
    return (
        compiles_itself(model)
        and not model.distribute_strategy.fit_support.compiles_all
        and bool(model.jit_compile)
    )


def strategy_of(model: Any) -> FastnetStrategy | None:
    """Returns a model's strategy if it is of keras_fastnet, else `None`.

    Args:
        model: A Keras model, or `None`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if isinstance(strategy, FastnetStrategy) else None
