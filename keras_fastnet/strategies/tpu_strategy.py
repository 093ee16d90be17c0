"""TPUStrategy: TensorFlow's, with exact shares, means and metrics."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.active_strategy import MicroBatchOptimizer
from keras_fastnet._keras.adapters import install_changes
from keras_fastnet._keras.keras_api import keras, require_keras_3
from keras_fastnet._keras.replica_step import ModelStep
from keras_fastnet.arguments import checked_choice
from keras_fastnet.batches.distributed_input import local_results, per_replica
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    rows_of,
    static_rows,
    with_examples,
)
from keras_fastnet.errors import ClusterError, ShardingError
from keras_fastnet.strategies.extended import FitExtended, FitStrategy
from keras_fastnet.strategies.fit_support import SCALAR_LOSSES, FitSupport
from keras_fastnet.text import count


class TorusTPUExtended(FitExtended, upstream.TPUExtended):
    """The extended half of `TPUStrategy`, with exact shares of every global batch."""

    # One process drives all cores.
    @property
    def rank(self) -> int:
        """This worker's rank in the cluster."""
        return 0

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return 1


class TPUStrategy(FitStrategy, tf.distribute.TPUStrategy):
    """Synchronous data-parallel training on the cores of a TPU system.

    `tf.distribute.TPUStrategy`, which sums over the TPU's own torus, with the rest of
    `TorusStrategy`: each core takes its share of every global batch, gradients are
    summed before they are clipped, metrics and moving statistics are computed over all
    examples, dropout differs by core, and `LargeBatchOptimizer` and the callbacks of
    this package work.

    The cores run one program of static shapes; XLA compiles one more for each size of a
    batch. If a batch is no multiple of the number of cores, the remaining examples take
    a separate step; an update with both needs a `LargeBatchOptimizer`. Layers with
    batch statistics use those of each step, with equal weights.

    Args:
        tpu_cluster_resolver: A `tf.distribute.cluster_resolver.TPUClusterResolver` of
            a system that is connected and initialised. `keras_fastnet.strategy(tpu=…)`
            finds one.
        scalar_losses: Meaning of a scalar that a loss function returns: the `"mean"`
            over its examples, or their `"sum"`. Defaults to `"mean"`.

    Raises:
        ClusterError: If the system has several hosts.
        NotImplementedError: With Keras 2.
        TypeError: If `tpu_cluster_resolver` is no `TPUClusterResolver`.

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
    fit_support: "TPUFitSupport"

    def __init__(
        self,
        tpu_cluster_resolver: tf.distribute.cluster_resolver.TPUClusterResolver,
        *,
        scalar_losses: Literal["mean", "sum"] = "mean",
    ):
        require_keras_3("TPUStrategy")
        scalar_losses = checked_choice("scalar_losses", scalar_losses, SCALAR_LOSSES)
        kind = tf.distribute.cluster_resolver.TPUClusterResolver
        if not isinstance(tpu_cluster_resolver, kind):
            raise TypeError(
                "`tpu_cluster_resolver` must be a `TPUClusterResolver`. Received: "
                f"{tpu_cluster_resolver!r}. Use `keras_fastnet.strategy(tpu='local')`, "
                "or pass `TPUClusterResolver.connect('local')`."
            )
        extended = TorusTPUExtended(self, tpu_cluster_resolver)
        if extended.num_hosts > 1:
            raise ClusterError(
                "TPUStrategy trains on the cores of one host. Received: a TPU system "
                f"of {extended.num_hosts} hosts. Ask for a slice of one host, or use "
                "`tf.distribute.TPUStrategy`, without LargeBatchOptimizer."
            )
        upstream.tpu_strategy_with_extended(self, extended)
        self.fit_support = TPUFitSupport(
            self,
            trained_by=lambda: count(self.num_replicas_in_sync, "TPU core"),
            scalar_losses=scalar_losses,
        )
        install_changes(self)


class TPUFitSupport(FitSupport):
    """Runs Keras's steps as programs of static shapes.

    A batch that the cores cannot divide evenly takes several steps: one for the
    examples that all cores have, and one for each row that only some have.
    """

    compiles_all = True

    def _check_fit(self, model: keras.Model, data: Any) -> None:
        if data.examples is None:
            return
        batch = data.examples_of_first_batch()
        for examples in (batch, data.examples % batch):
            self._check_adds_up(model.optimizer, examples)

    def _run_step(
        self, step: ModelStep, batch: Any, options: Any, *, continues: bool = False
    ) -> Any:
        # Once for the examples that all cores have, and once more for those that only
        # some have, beside fillers that count for nothing.
        shares = self._shares_of(batch)
        if step.kind == "train":
            examples = sum(static_rows(share.data) for share in shares)
            self._check_adds_up(step.model.optimizer, examples)
        parts = self._parts(shares)
        outputs: list[Any] = []
        for part in parts:
            last = part is parts[-1]
            # TensorFlow does not see that programs share the cores' variables.
            with tf.control_dependencies(tf.nest.flatten(outputs, True)):
                given = per_replica(self.strategy, part)
                outputs.append(
                    super()._run_step(step, given, options, continues=not last)
                )
        if step.kind == "predict":
            return self._joined(outputs, parts)
        # Logs that are not exact differ by core; Keras would take the first core's.
        return tf.nest.map_structure(
            lambda log: (
                self.reduce("MEAN", log, None)
                if isinstance(log, tf.distribute.DistributedValues)
                else log
            ),
            outputs[-1],
        )

    def _shares_of(self, batch: Any) -> list[GlobalBatch]:
        """Returns what each core takes of a batch."""
        if isinstance(batch, GlobalBatch):
            return local_results(self.strategy, batch)
        cores = self.strategy.num_replicas_in_sync
        # `train_on_batch` and its relatives.
        return [with_examples(batch, core, cores) for core in range(cores)]

    def _parts(self, shares: list[GlobalBatch]) -> list[list[GlobalBatch]]:
        """Divides a batch into parts of which all cores take equally many examples.

        All but the first have one row for each core.
        """
        rows = [static_rows(share.data) for share in shares]
        parts = []
        for begin, end in itertools.pairwise([0, *range(min(rows), max(rows) + 1)]):
            own = [tf.clip_by_value(s.own - begin, 0, end - begin) for s in shares]
            examples = tf.add_n(own)
            parts.append(
                [
                    # A core that has no more takes its first example as a filler.
                    GlobalBatch(
                        rows_of(share.data, *((begin, end) if begin < n else (0, 1))),
                        own_examples,
                        examples,
                        share.fingerprint,
                    )
                    for share, n, own_examples in zip(shares, rows, own, strict=True)
                ]
            )
        return parts

    def _check_adds_up(self, optimizer: Any, examples: int) -> None:
        """Raises if an optimizer would make two updates of one batch."""
        cores = self.strategy.num_replicas_in_sync
        even = examples < cores or examples % cores == 0
        if even or isinstance(optimizer, MicroBatchOptimizer):
            return
        raise ShardingError(
            "On a TPU all cores take equally many examples in a step, so that an "
            "update with a batch that is no multiple of the number of cores is one of "
            f"two micro-batches. Received: a batch of {examples:,} examples for "
            f"{cores} cores, with a {type(optimizer).__name__}. Compile with "
            "`keras_fastnet.LargeBatchOptimizer(optimizer)`, change `batch_size`, or "
            "leave the last batch of an epoch out with "
            "`dataset.batch(..., drop_remainder=True)`."
        )

    def _joined(self, outputs: list[Any], parts: list[list[GlobalBatch]]) -> Any:
        """Returns each core's predictions for its own examples, in their order."""
        by_core = zip(
            *(local_results(self.strategy, output) for output in outputs), strict=True
        )
        own = zip(*([share.own for share in part] for part in parts), strict=True)
        return per_replica(self.strategy, list(map(_first_rows, by_core, own)))

    def _predictions(self, step: ModelStep, batch: GlobalBatch) -> Any:
        # Static shapes: fillers are left out by `_joined`.
        return step(batch.data)


def _first_rows(batches: Sequence[Any], counts: Sequence[Any]) -> Any:
    """Joins the first rows of several batches.

    Args:
        batches: Structures of tensors.
        counts: Number of rows of each.
    """
    # Not in the cores' program, whose shapes are static.
    return tf.nest.map_structure(
        lambda *leaves: tf.concat(
            [leaf[:n] for leaf, n in zip(leaves, counts, strict=True)], 0
        ),
        *batches,
    )
