"""The data of Keras 2's `fit`."""

from typing import Any

from keras_fastnet._keras.keras2.internals import internal
from keras_fastnet._keras.training_data import TrainingData

_adapters = internal("engine.data_adapter")


class HandlerData(TrainingData):
    """The data behind Keras 2's `DataHandler`.

    Args:
        handler: Keras's handler.
        elements: The `EpochData` behind it.
    """

    def __init__(self, handler: Any, elements: Any):
        super().__init__(elements)
        self._handler = handler

    @property
    def batches(self) -> int | None:
        """Number of batches in an epoch; `None` where it is not known."""
        return self._handler.inferred_steps

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch; `None` where only reading would tell."""
        adapter = self._handler._adapter
        if not (
            self.whole_epochs and isinstance(adapter, _adapters.TensorLikeDataAdapter)
        ):
            return None
        last = adapter.partial_batch_size() or adapter.batch_size()
        return (adapter.get_size() - 1) * adapter.batch_size() + last

    @property
    def _steps_per_epoch(self) -> int | None:
        return self._handler._steps_per_epoch

    def _pass_epoch(self) -> None:
        self.elements.pass_epoch()
        self._handler._adapter.on_epoch_end()
