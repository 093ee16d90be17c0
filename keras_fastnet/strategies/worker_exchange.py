"""Values that the workers of a strategy tell one another outside of steps."""

import numpy as np
import tensorflow as tf

from keras_fastnet.batches.distributed_input import per_replica


class WorkerExchange:
    """Collectives of the workers, each of which must call them at once.

    Args:
        strategy: Their strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy

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
        return tf.distribute.Strategy.reduce(
            strategy, "SUM", per_replica(strategy, values), axis=None
        )

    def values_of_all(self, own: tf.Tensor) -> list[list[int]]:
        """Returns integers of each worker, by rank.

        Args:
            own: This worker's, of shape `(n,)`.
        """
        rank, workers = self._strategy.rank, self._strategy.num_workers
        mine = tf.one_hot(rank, workers, dtype=tf.int64)[:, None] * own
        return self.sum(mine).numpy().tolist()

    def any(self, own: bool) -> bool:
        """Returns whether something holds on any worker.

        Args:
            own: Whether it holds on this one.
        """
        return any(n for (n,) in self.values_of_all(tf.constant([own], tf.int64)))

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
