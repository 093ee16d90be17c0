"""A callback that logs how fast training goes."""

import time
from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.batches.epoch_data import INPUT_METER
from keras_fastnet.callbacks.progress import updates_of


class ThroughputMonitor(keras.callbacks.Callback):
    """Adds to the logs of every epoch how fast it was.

    | Key | |
    | --- | --- |
    | `examples_per_second` | Training examples a second, of all replicas |
    | `updates_per_second` | Updates of the optimizer a second |
    | `seconds_per_update` | Its inverse |
    | `input_wait_share` | The part of the time that went into waiting for data |

    Time runs from the beginning of an epoch's first batch to the end of its last:
    validation is left out, and the first epoch has the tracing in it. Waiting is that
    of this worker. It reads two clocks a batch and nothing else.

    It knows the data of our strategies with several replicas and of a
    `LargeBatchOptimizer`; elsewhere only updates are logged. List it before
    `TensorBoard` or `CSVLogger`.

    Example:

    ```python
    logger = keras.callbacks.CSVLogger("log.csv")
    model.fit(x, y, callbacks=[ThroughputMonitor(), logger])
    ```
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the epoch before."""
        self._begun: float | None = None
        self._ended = 0.0
        self._updates = updates_of(self.model.optimizer)
        self._waited, self._examples = INPUT_METER.seconds, INPUT_METER.examples
        self._last = (0.0, 0)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Starts the clock with the first batch."""
        if self._begun is None:
            self._begun = time.perf_counter()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Notes the time and what was fetched."""
        self._ended = time.perf_counter()
        self._last = (
            INPUT_METER.seconds - self._waited,
            INPUT_METER.examples - self._examples,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds to the logs."""
        if logs is None or self._begun is None:
            return
        seconds = self._ended - self._begun
        updates = updates_of(self.model.optimizer) - self._updates
        waited, examples = self._last
        if updates:
            logs["updates_per_second"] = updates / seconds
            logs["seconds_per_update"] = seconds / updates
        if examples:
            logs["examples_per_second"] = examples / seconds
            logs["input_wait_share"] = min(waited / seconds, 1.0)
