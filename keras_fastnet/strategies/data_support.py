"""The side of a strategy of ours that Keras's loops take their data from."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.protocols import HookedStrategy
from keras_fastnet._keras.tensorflow import empty_batch, worker_dataset
from keras_fastnet.batches.epoch_data import EpochData
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    count_examples,
    dealt_evenly,
    fill_if_empty,
    joined_shares,
    tell_the_same,
    without_optionals,
)
from keras_fastnet.errors import ShardingError
from keras_fastnet.strategies.extended import FitExtended, alone


class DataSupport(HookedStrategy, tf.distribute.Strategy):
    """What the hooks in Keras's data loops ask a strategy for. A mixin."""

    extended: FitExtended

    @property
    def rank(self) -> int:
        """This worker's position in the cluster, from 0 (the chief)."""
        return self.extended.rank

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self.extended.workers

    def alone(self) -> AbstractContextManager[None]:
        """Returns a context in which variables are made for this worker alone."""
        return alone()

    @property
    def _devices(self) -> int:
        """Number of this worker's devices."""
        return len(self.extended.worker_devices)

    def epoch_data(self, dataset: Any) -> EpochData:
        """Returns what Keras iterates over in one epoch.

        Args:
            dataset: A dataset that this strategy distributed.
        """
        if self.num_replicas_in_sync < 2:
            return EpochData(lambda: iter(worker_dataset(dataset)))
        shares = _global_batches(dataset)
        if shares is None:
            own = worker_dataset(dataset).prefetch(2 * self._devices)
            return EpochData(
                lambda: self._own_steps(own),
                join=self._join,
                sharding="each worker reads its own data",
            )
        return EpochData(
            lambda: self._steps(shares),
            self._check_same_data,
            join=self._join,
            sharding="every worker reads all data and takes its share",
        )

    def _steps(self, shares: tf.data.Dataset) -> Iterator[GlobalBatch]:
        """Fetches the shares of this worker's devices, step by step.

        Not through TensorFlow's distributed iterator: its destructor waits, up to
        many seconds, for a sleeping autotuner, while the other workers wait for us.
        """
        iterator = iter(shares)
        if self._devices == 1:
            return iterator
        return (
            self._per_replica([first, *itertools.islice(iterator, self._devices - 1)])
            for first in iterator
        )

    def _own_steps(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Fetches what each worker's own data yield, until all workers' have ended.

        Not through TensorFlow's distributed iterator either, which would also ask
        the workers in every step whether any has data: the counts tell.
        """
        # A generator that has ended stays so.
        elements = (element for element in dataset)
        while True:
            local = list(itertools.islice(elements, self._devices))
            missing = self._devices - len(local)
            local += [empty_batch(dataset.element_spec)] * missing
            if self.compiles_all:
                local = dealt_evenly(local)
            counts = [count_examples(part) for part in local]
            total = self._sum_over_workers(tf.add_n(counts))
            if total == 0:
                return
            mark = tf.zeros([1], tf.int64)
            yield self._per_replica(
                [
                    GlobalBatch(fill_if_empty(part), own, total, mark)
                    for part, own in zip(local, counts, strict=True)
                ]
            )

    def agreed_batches(self, dataset: Any, own: int | None) -> int | None:
        """Returns the steps of an epoch, equal on all workers.

        Args:
            dataset: A dataset that this strategy distributed.
            own: How many batches this worker's data has; `None` where unknown.
        """
        if self.num_workers < 2 or _global_batches(dataset) is not None:
            return own
        # Own data of unequal length goes on until the longest ends. Counted after
        # TensorFlow cut the batches to a replica's size.
        batches = dataset.cardinality
        steps = -(-batches // self._devices)
        counts = [n for (n,) in self.of_all_workers(tf.constant([steps], tf.int64))]
        return None if min(counts) < 0 else max(counts)

    def peek(self, data: EpochData) -> Any:
        """Returns examples of the first batch. Keras builds the model from it.

        Args:
            data: A result of `epoch_data`.
        """
        batch = data.peek()
        if isinstance(batch, GlobalBatch):
            batch = self._local_results(batch.data)[0]
        return without_optionals(batch)

    def _check_same_data(self, batch: GlobalBatch) -> None:
        if self.num_workers < 2:
            return
        own = self.experimental_local_results(batch.fingerprint)[0]
        seen = self.of_all_workers(own)
        if not tell_the_same(seen):
            raise ShardingError(
                "All workers must see the same global batches, of which each takes "
                f"its share. Received: different first batches ({seen}). "
                "Shuffle with the same seed on every worker, after the strategy was "
                "made, and read the same files in the same order. Data that is "
                "different on every worker on purpose needs "
                "`options.experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.OFF`."
            )

    def _join(self, batches: list[Any]) -> Any:
        local = zip(*(self._local_results(batch) for batch in batches), strict=True)
        return self._per_replica([joined_shares(list(shares)) for shares in local])

    def _local_results(self, data: Any) -> list[Any]:
        """Takes a structure of `PerReplica` values apart, by local replica."""
        return [
            tf.nest.map_structure(
                lambda value: self.experimental_local_results(value)[i],  # noqa: B023
                data,
            )
            for i in range(self._devices)
        ]

    def of_all_workers(self, own: tf.Tensor) -> list[list[int]]:
        """Returns integers of each worker, by rank.

        Args:
            own: This worker's, of shape `(n,)`.
        """
        mine = tf.one_hot(self.rank, self.num_workers, dtype=tf.int64)[:, None] * own
        return self._sum_over_workers(mine).numpy().tolist()

    def _sum_over_workers(self, value: tf.Tensor) -> tf.Tensor:
        """Sums one value of each worker, whatever its number of devices."""
        if self.num_workers < 2:
            return value
        values = [value, *[tf.zeros_like(value)] * (self._devices - 1)]
        return super().reduce("SUM", self._per_replica(values), axis=None)

    def _per_replica(self, values: list[Any]) -> Any:
        first = self.rank * len(values)
        return self.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - first]
        )


def _global_batches(dataset: Any) -> Any:
    """The same data with what Keras's steps must know; `None` if shared otherwise."""
    return getattr(dataset, "global_batches", None)
