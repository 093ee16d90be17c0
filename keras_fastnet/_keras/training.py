"""What callbacks see of a training: its data, its variables and one another."""

import weakref
from collections.abc import Sequence
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
    sets_learning_rate = False
    """Whether it sets the optimizer's learning rate from the first update on."""
    adds_logs = False
    """Whether it adds values to the logs of epochs, and does nothing else with them."""
    hidden_logs: tuple[str, ...] = ()
    """Prefixes of logs that the progress bar does not show."""


class TrainingData:
    """The data that Keras's loop was given, for callbacks.

    Args:
        elements: The `EpochData` that the loop iterates over.
    """

    def __init__(self, elements: Any):
        self.elements = elements
        self.first_batch = 0
        """Batches of the coming epoch that an earlier run has trained."""

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

    def examples_of_first_batch(self) -> int:
        """Returns the number of examples in the first batch, over all replicas.

        All workers must call it.
        """
        return self.elements.examples_of_first()

    @property
    def whole_epochs(self) -> bool:
        """Whether every epoch begins with the data's first batch."""
        return self._steps_per_epoch is None

    @property
    def batches(self) -> int | None:
        """Number of batches in an epoch; `None` where it is not known."""
        raise NotImplementedError

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch; `None` where only reading would tell."""
        raise NotImplementedError

    def first_arrays(self) -> Any:
        """Returns some examples of arrays, whatever order they are shuffled in.

        Returns:
            The structure of the first ones; `None` for other data.
        """
        return None

    def resume(self, epoch: int, batch: int) -> None:
        """Continues at the position of an earlier run of the same program.

        Args:
            epoch: Epochs that it has finished.
            batch: Batches of the epoch after these that it has trained.
        """
        # Before it is skipped.
        self.examples_of_first_batch()
        steps = self._steps_per_epoch
        if steps is not None:
            self.elements.skip(epoch * steps + batch)
        else:
            for _ in range(epoch):
                self._pass_epoch()
            self.elements.skip(batch)
        self.first_batch = batch

    @property
    def _steps_per_epoch(self) -> int | None:
        """The argument `steps_per_epoch` of `fit`."""
        raise NotImplementedError

    def _pass_epoch(self) -> None:
        """Skips one epoch that an earlier run has trained."""
        raise NotImplementedError


# Weakly, both: Keras forgets the data when it is done with them.
_given: "weakref.WeakKeyDictionary[Any, weakref.ref[TrainingData]]"
_given = weakref.WeakKeyDictionary()


def note_data(model: Any, data: TrainingData) -> None:
    """Remembers the data that a model was last given.

    Args:
        model: The model.
        data: Its data.
    """
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


def metric_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics.

    Args:
        model: A compiled model.
    """
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
