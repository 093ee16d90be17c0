"""The inner half of a strategy, as far as Keras's steps and data need it."""

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.replica_step import ReplicaStep
from keras_fastnet.batches.global_batch import take_share, with_examples

_POLICY = tf.data.experimental.AutoShardPolicy
_PATIENCE_SECONDS = 30.0

_alone: contextvars.ContextVar[bool]
_alone = contextvars.ContextVar("_alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Has variables made for this worker alone, also within a strategy's scope."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


class FitExtended(tf.distribute.StrategyExtended):
    """Exact shares of every global batch, and means over its examples. A mixin.

    Attributes:
        step: What the replica of this thread knows of its step.
    """

    step: ReplicaStep
    worker_devices: tuple[str, ...]

    @property
    def rank(self) -> int:
        """This worker's position in the cluster."""
        raise NotImplementedError

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        raise NotImplementedError

    def _use_merge_call(self) -> bool:
        # A merge call cannot stand in a `tf.cond`, where Keras puts gradient
        # accumulation, overflow handling and the overwriting of EMA weights.
        return False

    def _create_variable(self, next_creator, **kwargs):
        if _alone.get():
            # Keras makes an optimizer to see what it need not save: a strategy's
            # variables have their first value from the chief, by a collective.
            return next_creator(**kwargs)
        if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            # Keras's counters (iterations, loss scale) take the same value on every
            # replica. TensorFlow would copy the first's by a merge call, which
            # cannot stand in the `tf.cond` of Keras's LossScaleOptimizer.
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        elif (
            kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
            and kwargs.get("aggregation") == tf.VariableAggregation.MEAN
        ):
            # Moving statistics, which steps leave equal on all replicas. A mean at
            # each reading is a collective: who saves alone would wait for ever.
            kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        with self._waiting_said(kwargs.get("name")):
            return super()._create_variable(next_creator, **kwargs)

    @contextlib.contextmanager
    def _waiting_said(self, name: str | None) -> Iterator[None]:
        """Says so where the other workers do not make a variable too."""
        if self.workers < 2:
            yield
            return
        text = (
            f"fastnet: worker {self.rank} has waited {_PATIENCE_SECONDS:g} seconds for "
            f"the other workers to make the variable {name!r} as well. Within "
            "`strategy.scope()` a model must be built, compiled or loaded on all "
            "workers. Let all do so, or do it outside of the scope on this one."
        )
        timer = threading.Timer(
            _PATIENCE_SECONDS, lambda: print(text, file=sys.stderr, flush=True)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def position(self, local_replica: int) -> int:
        """Which share of a global batch a local replica takes.

        The order in which Keras's `predict` puts the replicas' results together:
        the first device of every worker, then the second.

        Args:
            local_replica: Position among this worker's devices.

        Returns:
            A position from 0 to the number of replicas - 1.
        """
        return local_replica * self.workers + self.rank

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        if reduce_op == tf.distribute.ReduceOp.MEAN and self.step.share is not None:
            # The mean over examples: what one device computes.
            value = tf.nest.map_structure(self.step.weigh, value)
            reduce_op = tf.distribute.ReduceOp.SUM
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    def _experimental_distribute_dataset(self, dataset, options):
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (_POLICY.AUTO, _POLICY.DATA) or self._num_replicas_in_sync < 2:
            return upstream.without_wrong_cardinality(
                super()._experimental_distribute_dataset(dataset, options)
            )
        shares = self._shares(dataset, take_share)
        distributed = upstream.without_end_of_data_agreement(
            self._distribute_datasets_from_function(lambda _: shares, options)
        )
        distributed.global_batches = self._shares(dataset, with_examples).prefetch(
            2 * len(self.worker_devices)
        )
        return distributed

    def _shares(self, dataset, share):
        """Returns this worker's shares, those of its devices in turn."""
        replicas = self._num_replicas_in_sync
        positions = [self.position(i) for i in range(len(self.worker_devices))]
        unpack = isinstance(dataset.element_spec, tuple)

        def shares(*batch):
            data = batch if unpack else batch[0]
            return [share(data, position, replicas) for position in positions]

        def in_turn(*batch):
            parts = [tf.data.Dataset.from_tensors(part) for part in shares(*batch)]
            joined = parts[0]
            for part in parts[1:]:
                joined = joined.concatenate(part)
            return joined

        if len(positions) == 1:
            return dataset.map(lambda *batch: shares(*batch)[0])
        local = dataset.flat_map(in_turn)
        batches = dataset.cardinality()
        if batches < 0:
            return local
        return local.apply(
            tf.data.experimental.assert_cardinality(batches * len(positions))
        )
