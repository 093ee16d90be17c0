"""The data of Keras 3's `fit`."""

from typing import Any

from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_fastnet._keras.training_data import TrainingData


class IteratorData(TrainingData):
    """The data behind Keras 3's iterator over epochs.

    Args:
        iterator: Keras's iterator.
        elements: The `EpochData` behind it.
    """

    def __init__(self, iterator: TFEpochIterator, elements: Any):
        super().__init__(elements)
        self._iterator = iterator

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

    @property
    def _steps_per_epoch(self) -> int | None:
        return self._iterator.steps_per_epoch

    def _pass_epoch(self) -> None:
        adapter = self._iterator.data_adapter
        adapter.on_epoch_begin()
        self.elements.pass_epoch()
        adapter.on_epoch_end()

    def begin_epoch(self) -> None:
        """Sets the batch that Keras counts from; called when its loop begins."""
        iterator = self._iterator
        skipped, self.first_batch = self.first_batch, 0
        for _ in range(0, skipped, iterator.steps_per_execution):
            # Keras's count of steps; no data are read by it.
            next(iterator._epoch_iterator, None)
