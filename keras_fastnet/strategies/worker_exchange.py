"""Values that the workers of a strategy tell one another outside of steps."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet.batches.distributed_input import per_replica
from keras_fastnet.cluster.flight_recorder import FlightRecorder


class WorkerExchange:
    """Collectives of the workers, each of which must call them at once.

    Args:
        strategy: Their strategy.
        recorder: Has their texts; `None` for a single worker.
    """

    def __init__(self, strategy: Any, recorder: FlightRecorder | None = None):
        self._strategy = strategy
        self._recorder = recorder
        # Of data of its own a worker sums a number in every step: what TensorFlow does
        # in Python for an eager reduction takes more time than the exchange.
        plain = functools.partial(tf.distribute.Strategy.reduce, strategy, "SUM")
        self._reduce = tf.function(plain, autograph=False)

    def gather(self, own: Any, purpose: str, *, last: bool = False) -> list[Any]:
        """Returns a value of each worker, by rank; see `FlightRecorder.gather`.

        Args:
            own: This worker's, for JSON.
            purpose: What it is for, such as "the beginning of `fit`".
            last: Whether the program may end now. Defaults to `False`.

        Raises:
            ClusterError: If another worker does not call it in time.
            MismatchError: If another worker calls it for another purpose.
        """
        if self._recorder is None:
            return [own]
        return self._recorder.gather(own, purpose, last=last)

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """Sums one value of each worker, whatever its number of devices.

        Args:
            value: This worker's.
        """
        strategy = self._strategy
        if strategy.num_workers < 2:
            return value
        devices = len(strategy.extended.worker_devices)
        values = [value, *[tf.zeros_like(value)] * (devices - 1)]
        with strategy.fit_support.named_errors():
            return self._reduce(per_replica(strategy, values), axis=None)

    def from_chief(self, data: bytes) -> bytes:
        """Returns the chief's bytes, on all workers.

        Args:
            data: This worker's, of which only the chief's count.
        """
        if self._strategy.num_workers < 2:
            return data
        own = data if self._strategy.rank == 0 else b""
        (size,) = self.sum(tf.constant([len(own)], tf.int64)).numpy()
        numbers = np.zeros(-(-size // 8), np.int64)
        numbers.view(np.uint8)[: len(own)] = np.frombuffer(own, np.uint8)
        sums = self.sum(tf.constant(numbers)).numpy()
        return sums.view(np.uint8)[:size].tobytes()
