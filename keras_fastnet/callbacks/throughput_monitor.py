"""A callback that logs the speed of training."""

import time
from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import FastnetCallback
from keras_fastnet.batches.epoch_data import INPUT_METER
from keras_fastnet.callbacks.progress import updates_of


class ThroughputMonitor(FastnetCallback, keras.callbacks.Callback):
    """Adds the speed of training to the logs of every epoch.

    | Key | |
    | --- | --- |
    | `examples_per_second` | Training examples per second, of all replicas |
    | `updates_per_second` | Updates of the optimizer per second |
    | `seconds_per_update` | Its inverse |
    | `input_wait_share` | The fraction of the time spent waiting for data |

    Time is measured from the start of an epoch's first batch to the end of its last,
    without validation; in the first epoch it includes tracing. Waiting is measured on
    this worker. The callback reads two clocks per batch and nothing else.

    It counts examples under a strategy of `keras_fastnet` with several replicas or with
    a `LargeBatchOptimizer`; otherwise only updates are logged. List it before loggers.

    Example:

    ```python
    logger = keras.callbacks.CSVLogger("log.csv")
    model.fit(x, y, callbacks=[ThroughputMonitor(), logger])
    ```
    """

    only_watches = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Resets the measurements."""
        self._begun: float | None = None
        self._ended = 0.0
        self._updates = updates_of(self.model.optimizer)
        self._waited, self._examples = INPUT_METER.seconds, INPUT_METER.examples
        self._last = (0.0, 0)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Starts the clock at the first batch."""
        if self._begun is None:
            self._begun = time.perf_counter()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Records the time and the input meter."""
        self._ended = time.perf_counter()
        self._last = (
            INPUT_METER.seconds - self._waited,
            INPUT_METER.examples - self._examples,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the speeds to the logs."""
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
