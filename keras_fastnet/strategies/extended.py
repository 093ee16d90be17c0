"""The extended half that the strategies have in common."""

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.replica_step import keras_step
from keras_fastnet._keras.training import SHARED_POLICIES
from keras_fastnet.batches.shares import distribute_shares
from keras_fastnet.cluster.flight_recorder import FlightRecorder

_TO_MAKE = (
    "for the other workers to make the variable {!r} as well. Within "
    "`strategy.scope()` a model must be built, compiled or loaded on all workers. Let "
    "all do so, or do it outside of the scope on this one"
)

_alone: contextvars.ContextVar[bool]
_alone = contextvars.ContextVar("_alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Makes variables for this worker alone, also within a strategy's scope."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


class FitExtended(tf.distribute.StrategyExtended):
    """Exact shares of every global batch, and means over its examples.

    A base for subclasses of TensorFlow's extended classes, which `tf.distribute` calls.
    """

    worker_devices: tuple[str, ...]
    recorder: FlightRecorder | None = None

    @property
    def rank(self) -> int:
        """This worker's rank in the cluster."""
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
            # each reading would be a collective: saving on one worker would deadlock.
            kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        if self.recorder is None:
            return super()._create_variable(next_creator, **kwargs)
        purpose = _TO_MAKE.format(kwargs.get("name"))
        with self.recorder.waiting(purpose), self.recorder.named_errors():
            return super()._create_variable(next_creator, **kwargs)

    def position(self, local_replica: int) -> int:
        """Returns which share of a global batch a local replica takes.

        The order in which Keras's `predict` puts the replicas' results together:
        the first device of every worker, then the second.

        Args:
            local_replica: Position among this worker's devices.

        Returns:
            A position from 0 to the number of replicas - 1.
        """
        return local_replica * self.workers + self.rank

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        step = keras_step()
        if reduce_op == tf.distribute.ReduceOp.MEAN and step is not None:
            # The mean over examples: what one device computes.
            value = tf.nest.map_structure(step.weigh, value)
            reduce_op = tf.distribute.ReduceOp.SUM
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    def _experimental_distribute_dataset(self, dataset, options):
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in SHARED_POLICIES or self._num_replicas_in_sync < 2:
            return upstream.without_wrong_cardinality(
                super()._experimental_distribute_dataset(dataset, options)
            )
        devices = range(len(self.worker_devices))
        return distribute_shares(
            dataset,
            [self.position(device) for device in devices],
            self._num_replicas_in_sync,
            lambda make: self._distribute_datasets_from_function(make, options),
        )
