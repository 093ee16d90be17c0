"""What callbacks see of a training: its data, its variables and one another."""

import copy
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

SHARED_POLICIES = (
    tf.data.experimental.AutoShardPolicy.AUTO,
    tf.data.experimental.AutoShardPolicy.DATA,
)
"""Policies by which all workers share the batches of one dataset."""


class FastnetCallback:
    """A callback of keras_fastnet."""

    only_watches = False
    """Whether it changes nothing in training, so that workers may differ in it."""
    siblings: Sequence[Any] = ()
    """The callbacks of the list that it is in."""
    adds_logs = False
    """Whether it adds values to the logs of epochs, and does nothing else with them."""
    hidden_logs: tuple[str, ...] = ()
    """Prefixes of logs that the progress bar does not show."""


class TrainingData:
    """The data that Keras 3's loop was given, for callbacks.

    Args:
        iterator: Keras's iterator over epochs, over an `EpochData`.
    """

    def __init__(self, iterator: Any):
        self.elements = iterator.data
        self.first_batch = 0
        """Batches of the coming epoch that an earlier run has trained."""
        self._iterator = iterator

    @property
    def batches_per_step(self) -> int:
        """Number of batches that a step takes at once."""
        return self.elements.batches_per_step

    def set_batches_per_step(self, batches: int) -> None:
        """Sets how many batches each step takes at once, from the next epoch on.

        Args:
            batches: How many; the last step of an epoch takes what is left.
        """
        self.elements.batches_per_step = batches
        # Keras goes on counting the data's batches.
        self._iterator.steps_per_execution = self.elements.steps_per_call * batches

    def examples_of_first_batch(self) -> int:
        """Returns the number of examples in the first batch, over all replicas.

        All workers must call it.
        """
        return self.elements.examples_of_first()

    @property
    def whole_epochs(self) -> bool:
        """Whether every epoch begins with the data's first batch."""
        return self._iterator.steps_per_epoch is None

    @property
    def batches(self) -> int | None:
        """Number of batches in an epoch; `None` where it is not known."""
        return self._iterator.num_batches

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch; `None` where only reading would tell."""
        if not self.whole_epochs:
            return None
        return getattr(self._iterator.data_adapter, "_num_samples", None)

    def first_arrays(self) -> Any:
        """Returns some examples of arrays, whatever order they are shuffled in.

        Returns:
            The structure of the first ones; `None` for other data.
        """
        adapter = self._iterator.data_adapter
        if not hasattr(adapter, "_num_samples"):
            return None
        unshuffled = copy.copy(adapter)
        unshuffled._shuffle = False
        # Enough to recognise them.
        unshuffled._batch_size = min(64, adapter._batch_size)
        return next(iter(unshuffled.get_numpy_iterator()))

    def resume(self, epoch: int, batch: int) -> None:
        """Continues at the position of an earlier run of the same program.

        Args:
            epoch: Epochs that it has finished.
            batch: Batches of the epoch after these that it has trained.
        """
        # Before it is skipped.
        self.examples_of_first_batch()
        steps = self._iterator.steps_per_epoch
        if steps is not None:
            self.elements.skip(epoch * steps + batch)
        else:
            adapter = self._iterator.data_adapter
            for _ in range(epoch):
                adapter.on_epoch_begin()
                self.elements.pass_epoch()
                adapter.on_epoch_end()
            self.elements.skip(batch)
        self.first_batch = batch
        iterator = self._iterator
        enumerate_epoch = iterator._enumerate_iterator

        def enumerate_rest() -> Iterator[Any]:
            """Enumerates the steps of the first epoch from `first_batch` on."""
            del iterator._enumerate_iterator
            steps = enumerate_epoch()
            skipped, self.first_batch = self.first_batch, 0
            for _ in range(0, skipped, iterator.steps_per_execution):
                # Keras's count of steps; no data are read by it.
                next(steps, None)
            return steps

        iterator._enumerate_iterator = enumerate_rest


# Weakly, both: Keras forgets the data when it is done with them.
_given: "weakref.WeakKeyDictionary[Any, weakref.ref[TrainingData]]"
_given = weakref.WeakKeyDictionary()


def note_data(model: Any, data: TrainingData) -> None:
    """Remembers the data that a model was last given."""
    _given[model] = weakref.ref(data)


def data_of(model: Any) -> TrainingData | None:
    """Returns the data that a model was last given; those of training until it begins.

    Args:
        model: A model with a keras_fastnet strategy or a `LargeBatchOptimizer`.

    Returns:
        The data; `None` for other models.
    """
    given = _given.get(model)
    return None if given is None else given()


def is_own(kind: type) -> bool:
    """Returns whether a class is neither Python's, Keras's nor this package's."""
    known = ("builtins", "keras", "keras_fastnet", "tensorflow")
    return kind.__module__.partition(".")[0] not in known


def metric_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics."""
    return [v for metric in model.metrics for v in metric.variables]


def named(groups: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns each variable once, by its first group and its place there.

    Args:
        groups: Variables by the name of a group.
    """
    state: dict[str, Any] = {}
    seen: set[int] = set()
    for group, variables in groups.items():
        fresh = [v for v in variables if id(v) not in seen]
        seen.update(map(id, fresh))
        state.update({f"{group}/{i}": v for i, v in enumerate(fresh)})
    return state
