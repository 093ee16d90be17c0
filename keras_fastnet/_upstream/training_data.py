"""What Keras's `fit` iterates over, as callbacks need it."""

import weakref
from typing import Any

import keras
from keras.src.backend.tensorflow.trainer import TFEpochIterator


class TrainingData:
    """The data that Keras's loop was given.

    Args:
        iterator: Keras's iterator.
        elements: The `EpochData` behind it.
    """

    def __init__(self, iterator: TFEpochIterator, elements: Any):
        self._iterator = iterator
        self.elements = elements
        self.first_batch = 0
        """Batches of the coming epoch that an earlier run has trained."""

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

    def resume(self, epoch: int, batch: int) -> None:
        """Goes on where an earlier run of the same program was.

        Args:
            epoch: Epochs that it has finished.
            batch: Batches of the epoch after these that it has trained.
        """
        # While it can be seen.
        self.elements.examples_of_first()
        if not self.whole_epochs:
            self.elements.skip(epoch * self._iterator.steps_per_epoch + batch)
        else:
            adapter = self._iterator.data_adapter
            for _ in range(epoch):
                adapter.on_epoch_begin()
                self.elements.pass_epoch()
                adapter.on_epoch_end()
            self.elements.skip(batch)
        self.first_batch = batch

    def begin_epoch(self) -> None:
        """Sets the batch that Keras counts from; called when its loop begins."""
        iterator = self._iterator
        skipped, self.first_batch = self.first_batch, 0
        for _ in range(0, skipped, iterator.steps_per_execution):
            # Keras's count of steps; no data are read by it.
            next(iterator._epoch_iterator, None)


# Weakly, both: Keras forgets the data when it is done with them.
_given: "weakref.WeakKeyDictionary[keras.Model, weakref.ref[TrainingData]]"
_given = weakref.WeakKeyDictionary()


def note_data(model: keras.Model, data: TrainingData) -> None:
    """Remembers the data that a model was last given.

    Args:
        model: The model.
        data: Its data.
    """
    _given[model] = weakref.ref(data)


def data_of(model: keras.Model) -> TrainingData | None:
    """Returns the data that a model was last given; those of training until it begins.

    Args:
        model: A model under a `TorusStrategy` or with a `LargeBatchOptimizer`.

    Returns:
        The data; `None` for other models, whose data are Keras's own affair.
    """
    given = _given.get(model)
    return None if given is None else given()
