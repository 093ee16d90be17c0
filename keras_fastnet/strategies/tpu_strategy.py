"""TPUStrategy: TensorFlow's, with exact shares, means and metrics."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_fastnet._upstream import keras_hooks
from keras_fastnet._upstream import tensorflow as upstream
from keras_fastnet._upstream.keras_api import require_keras_3
from keras_fastnet.errors import ShardingError
from keras_fastnet.strategies.global_batch import (
    GlobalBatch,
    count_examples,
    has_examples,
)
from keras_fastnet.strategies.keras_extended import KerasExtended
from keras_fastnet.strategies.keras_support import KerasSupport, predicts
from keras_fastnet.strategies.replica_step import ReplicaStep
from keras_fastnet.strategies.start_line import count


class TorusTPUExtended(KerasExtended, upstream.TPUExtended):
    """What TensorFlow does on TPUs, with exact shares of every global batch."""

    def __init__(self, strategy: Any, tpu_cluster_resolver: Any):
        self.step = ReplicaStep()
        super().__init__(strategy, tpu_cluster_resolver)

    # One process drives all cores, also those of other hosts.
    @property
    def rank(self) -> int:
        """This worker's position in the cluster."""
        return 0

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return 1

    def _use_merge_call(self) -> bool:
        # As in `TorusExtended`: all cores run one program, from which nobody returns.
        return False


class TPUStrategy(KerasSupport, tf.distribute.TPUStrategy):
    """Synchronous data-parallel training on the cores of a TPU system.

    `tf.distribute.TPUStrategy`, whose sums cross the TPU's own torus, with what
    `TorusStrategy` does around them: each core takes its share of every global batch,
    gradients are summed before anything is clipped, metrics and moving statistics are
    those over all examples, dropout differs by core, and `LargeBatchOptimizer`,
    `BatchGrowth` and the other callbacks work.

    The cores run one program of static shapes, and XLA compiles one more for each size
    of a batch: a global batch must be a multiple of the number of cores, or smaller
    than that.

    Args:
        tpu_cluster_resolver: A `tf.distribute.cluster_resolver.TPUClusterResolver` of
            a system that is connected and initialised. Defaults to `None`: the TPU of
            this machine.

    Example:
        ```python
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect("local")
        with keras_fastnet.TPUStrategy(resolver).scope():
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(optimizer=keras_fastnet.LARS(1.0), loss="mse")
        model.fit(x, y, batch_size=32_768)
        ```
    """

    extended: TorusTPUExtended
    compiles_all = True

    def __init__(
        self,
        tpu_cluster_resolver: (
            tf.distribute.cluster_resolver.TPUClusterResolver | None
        ) = None,
    ):
        require_keras_3("TPUStrategy")
        upstream.strategy_with_extended(
            self, TorusTPUExtended(self, tpu_cluster_resolver)
        )
        keras_hooks.heed(self)

    def run(self, fn, args=(), kwargs=None, options=None):
        """Runs `fn` on each core, as `tf.distribute.Strategy.run`.

        Args:
            fn: The function.
            args: Its positional arguments, `PerReplica` values taken apart.
            kwargs: Its keyword arguments.
            options: `tf.distribute.RunOptions`.

        Returns:
            The cores' results.

        Raises:
            ShardingError: The cores' shares of a batch differ in size.
        """
        batch = args[0] if args else None
        if not isinstance(batch, GlobalBatch):
            return super().run(fn, args, kwargs, options)
        self._check_equal_shares(batch)
        outputs = super().run(fn, args, kwargs, options)
        if not predicts(fn):
            return outputs
        # Here and not in the cores' program, whose shapes are static.
        return self._per_replica(
            [
                tf.nest.map_structure(lambda output: output[:own], predicted)  # noqa: B023
                for predicted, own in zip(
                    self._local_results(outputs),
                    self._local_results(batch.own),
                    strict=True,
                )
            ]
        )

    def who(self) -> str:
        """Returns who trains, for people."""
        return count(self.num_replicas_in_sync, "TPU core")

    def _check_equal_shares(self, batch: GlobalBatch) -> None:
        shares = [share.data for share in self._local_results(batch)]
        sizes = [[leaf.shape for leaf in tf.nest.flatten(share)] for share in shares]
        if any(other != sizes[0] for other in sizes):
            cores = self.num_replicas_in_sync
            raise ShardingError(
                "On a TPU all cores take equally many examples in a step: a global "
                "batch must be a multiple of the number of cores, or smaller. "
                f"Received: shares of {[s[0][0] for s in sizes]} examples for {cores} "
                "cores. Change `batch_size`, or leave the last batch of an epoch out "
                "with `dataset.batch(..., drop_remainder=True)`."
            )

    def _share_of(self, batch: Any) -> GlobalBatch:
        cores = self.num_replicas_in_sync
        examples = count_examples(batch)
        core = tf.distribute.get_replica_context().replica_id_in_sync_group

        def share(leaf: Any) -> Any:
            if not has_examples(leaf):
                return leaf
            rows, *rest = leaf.shape
            if rows % cores:
                raise ShardingError(
                    "On a TPU all cores take equally many examples in a step. "
                    f"Received: a batch of {rows} examples for {cores} cores. Give a "
                    "multiple of that."
                )
            return tf.reshape(leaf, [cores, rows // cores, *rest])[core]

        return GlobalBatch(
            data=tf.nest.map_structure(share, batch),
            own=examples // cores,
            examples=examples,
            fingerprint=tf.zeros([1], tf.int64),
        )

    def _predictions(self, step: Callable[..., Any], batch: GlobalBatch) -> Any:
        return step(batch.data)
