"""Callbacks that log the speed of training and the trust ratios of LARS."""

import time
from typing import Any

from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.adapters import optimizers
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import FastnetCallback
from keras_fastnet.batches.epoch_data import INPUT_METER
from keras_fastnet.callbacks.progress import updates_of
from keras_fastnet.optimizers.lars import LARS
from keras_fastnet.optimizers.trust_ratio import TrustRatioRecord


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


class TrustRatioMonitor(FastnetCallback, keras.callbacks.Callback):
    """Adds the trust ratio of every tensor to the logs of every epoch.

    | Key | Mean over the epoch's updates |
    | --- | --- |
    | `trust_ratio/<path>` | The factor of the tensor's learning rate |
    | `weight_norm/<path>` | The L2 norm of its weights, before the update |
    | `gradient_norm/<path>` | The L2 norm of its gradient |
    | `trust_ratio_min` | The smallest `trust_ratio` |
    | `trust_ratio_max` | The largest `trust_ratio` |

    `<path>` is `variable.path`. The gradient is the one passed to LARS: the mean over
    the global batch, unscaled and clipped. Every adapted tensor has an entry; biases,
    normalization layers and other exclusions have none, and updates skipped for an
    overflow do not count.

    With a strategy of `keras_fastnet` or a `LargeBatchOptimizer` the progress bar shows
    the smallest and the largest ratio only. List it before loggers.

    Nothing is computed without the callback. With it, LARS adds four numbers for each
    tensor and update, 1 % of its update of ResNet-50 on a CPU
    (benchmarks/optimizer_update), and `fit` traces the train function again.

    Raises:
        ValueError: From `fit`, before the first step: if the optimizer is neither
            `LARS` nor a `LargeBatchOptimizer` with one.

    Example:

    ```python
    board = keras.callbacks.TensorBoard("logs")
    model.fit(x, y, callbacks=[TrustRatioMonitor(), board])
    ```
    """

    hidden_logs = ("trust_ratio/", "weight_norm/", "gradient_norm/")

    def __init__(self) -> None:
        super().__init__()
        self._record: TrustRatioRecord | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the optimizer, and starts recording."""
        optimizer = self.model.optimizer
        lars = optimizers.with_inner(optimizer)[-1]
        if not isinstance(lars, LARS):
            raise ValueError(
                "TrustRatioMonitor needs LARS. Received: an optimizer of type "
                f"{type(lars).__name__}. Compile with `LARS(...)` or "
                "`LargeBatchOptimizer(LARS(...))`, or leave the callback out."
            )
        keras_models.build_optimizer(self.model)
        self._record = lars.record_trust_ratios()
        keras_models.retrace(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the means to the logs."""
        if logs is None or self._record is None:
            return
        means = self._record.take()
        for path, mean in means.items():
            for name, value in mean._asdict().items():
                logs[f"{name}/{path}"] = value
        if means:
            ratios = [mean.trust_ratio for mean in means.values()]
            logs["trust_ratio_min"], logs["trust_ratio_max"] = min(ratios), max(ratios)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops recording."""
        optimizer = self.model.optimizer
        optimizers.with_inner(optimizer)[-1].stop_recording()
        self._record = None
        keras_models.retrace(self.model)
