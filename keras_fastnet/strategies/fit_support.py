"""What the patched Keras code asks of a strategy."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.active_strategy import MicroBatchOptimizer
from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.adapters import optimizers, values
from keras_fastnet._keras.description import (
    described_callbacks,
    described_input,
    described_model,
)
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.replica_step import ModelStep, ReplicaStep, seed_offset
from keras_fastnet._keras.scopes import refuse_other_step
from keras_fastnet.batches.distributed_input import DistributedInput
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    count_examples,
    with_examples,
    without_optionals,
)
from keras_fastnet.cluster.board import Board
from keras_fastnet.cluster.flight_recorder import FlightRecorder
from keras_fastnet.strategies.agreement import compare_calls
from keras_fastnet.strategies.fit_steps import (
    differentiable_sums,
    refuse_unequal_outputs,
    run_step,
)
from keras_fastnet.strategies.fit_summary import fit_summary
from keras_fastnet.strategies.weights_check import WeightsCheck
from keras_fastnet.strategies.worker_exchange import WorkerExchange
from keras_fastnet.text import count

SCALAR_LOSSES = {
    "mean": "a scalar from a loss function is the mean over its examples",
    "sum": "it is their sum",
}
"""The values of a strategy's argument `scalar_losses`."""


class _Agreed:
    """A value that is known to be equal on all replicas: no need to reduce it."""

    def __init__(self, value: Any):
        self.value = value


class FitSupport:
    """The part of a strategy that the patched Keras code talks to.

    Args:
        strategy: The strategy.
        trained_by: Returns the workers and replicas, for the summary of `fit`.
        check_fit: Called before the first step of `fit`; raises if it cannot train.
        scalar_losses: What a scalar is that a loss function returns: the `"mean"` over
            the examples it was given, or their `"sum"`.
        recorder: Records what this worker does. Defaults to `None`.
        board: The workers' board; `None` for a single worker.

    Attributes:
        workers: Exchanges values between the workers.
        data: Distributes the data of Keras's loops.
        compiles_all: Whether XLA compiles each step as a whole, with static shapes.
    """

    compiles_all = False

    def __init__(
        self,
        strategy: Any,
        *,
        trained_by: Callable[[], str],
        check_fit: Callable[[], None] = lambda: None,
        scalar_losses: Literal["mean", "sum"] = "mean",
        recorder: FlightRecorder | None = None,
        board: Board | None = None,
    ):
        self.strategy = strategy
        self.recorder = recorder
        self.scalar_losses = scalar_losses
        self.workers = WorkerExchange(strategy, board)
        self.data = DistributedInput(strategy, self.workers, self.compiles_all)
        self._trained_by = trained_by
        self._check_plain_fit = check_fit
        self._weights = WeightsCheck(self.workers, warns=strategy.rank == 0)
        self._noted_losses: set[str] = set()
        self._said: set[str] = set()
        self._input: dict[str, Any] = {}

    def run(self, fn: Any, args: Any, kwargs: Any, options: Any) -> Any:
        """Runs a function on each replica, as `tf.distribute.Strategy.run`.

        Keras's own steps get their replica's share of the global batch, and their
        logs are those over all examples.

        Args:
            fn: The function.
            args: Its positional arguments, `PerReplica` values taken apart.
            kwargs: Its keyword arguments.
            options: `tf.distribute.RunOptions`.

        Returns:
            The replicas' results.
        """
        step = keras_models.step_of(fn)
        if step is None:
            refuse_other_step(fn)
            return self._run_function(fn, args, kwargs, options)
        if self.strategy.num_replicas_in_sync < 2:
            return self.strategy.plain_run(step.function, args, kwargs, options)
        return self._run_step(step, args[0], options)

    def _run_function(self, fn: Any, args: Any, kwargs: Any, options: Any) -> Any:
        if tf.executing_eagerly():
            self._agree_on_used()
            return self.strategy.plain_run(fn, args, kwargs, options)
        outputs = self.strategy.plain_run(fn, args, kwargs, options)
        # It has been traced, and has not run.
        self._agree_on_used()
        return outputs

    def _run_step(
        self, step: ModelStep, batch: Any, options: Any, *, continues: bool = False
    ) -> Any:
        """Runs one of Keras's steps on each replica.

        Args:
            step: The step.
            batch: The batch, or each replica's share of it.
            options: `tf.distribute.RunOptions`.
            continues: Whether a further step takes more examples of the same batch.
        """
        agreed: list[Any] = []

        def on_replica(batch: Any) -> Any:
            batch = self._own_share(batch)
            batch = batch._replace(data=without_optionals(batch.data))
            replica = ReplicaStep(batch.own, batch.examples, continues=continues)
            with replica.entered(), differentiable_sums(replica):
                if step.kind == "predict":
                    return self._predictions(step, batch)
                outputs, exact = run_step(step, batch, replica)
                agreed.append(exact)
                return outputs

        with keras_models.results_over_replicas(step.model):
            outputs = self._run_function(on_replica, (batch,), None, options)
        if step.kind == "predict":
            return outputs

        def agreed_on(output: Any, exact: bool) -> Any:
            if not exact:
                return output
            first = self.strategy.experimental_local_results(output)[0]
            # Keras reduces only what several workers return.
            return _Agreed(first) if self.strategy.num_workers > 1 else first

        return tf.nest.map_structure(agreed_on, outputs, agreed[0])

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduces `value` across replicas, as `tf.distribute.Strategy.reduce`.

        Keras also calls it for structures and, with an axis, for scalars.

        Args:
            reduce_op: `"SUM"` or `"MEAN"`.
            value: A value of each replica, or a structure of them.
            axis: Axis to reduce over within each replica as well; `None` for none.

        Returns:
            The reduced value or structure.
        """
        if isinstance(value, _Agreed):
            return value.value

        def reduce_one(v: Any) -> Any:
            own = self.strategy.experimental_local_results(v)[0]
            scalar = tf.convert_to_tensor(own).shape.rank == 0
            return tf.distribute.Strategy.reduce(
                self.strategy, reduce_op, v, axis=None if scalar else axis
            )

        return tf.nest.map_structure(reduce_one, value)

    def named_errors(self) -> AbstractContextManager[None]:
        """Returns a context that names the worker that an error comes from."""
        return (
            contextlib.nullcontext()
            if self.recorder is None
            else self.recorder.named_errors()
        )

    def counted_step(
        self, optimizer: MicroBatchOptimizer, step: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns a train step that tells an optimizer the size of its micro-batch.

        Args:
            optimizer: The optimizer.
            step: A function of one batch, on one device.
        """

        @functools.wraps(step)
        def counted(data: Any) -> Any:
            with optimizer.counting(count_examples(data)):
                return step(data)

        return counted

    def note_call(self, arguments: Mapping[str, Any]) -> None:
        """Describes what Keras is about to iterate over, for `compare_call`.

        Args:
            arguments: Those of Keras's iterator.
        """
        if self.strategy.num_workers > 1:
            self._input = described_input(arguments)

    def compare_call(self, model: keras.Model, call: str) -> None:
        """Checks that all workers use equal models and data, before the first batch.

        Args:
            model: The model.
            call: The call of Keras.

        Raises:
            MismatchError: If another worker makes another call.
            ClusterError: If another worker makes none.
        """
        if self.strategy.num_workers > 1:
            compare_calls(self.workers, call, described_model(model) | self._input)

    def compare_fit(self, epochs: int | None, callbacks: Sequence[Any]) -> None:
        """Checks that all workers train as long, with the same callbacks.

        Raises:
            MismatchError: If they differ.
        """
        if self.strategy.num_workers > 1:
            parts = {"epochs": epochs, "callbacks": described_callbacks(callbacks)}
            compare_calls(self.workers, "`fit`", parts)

    def begin_fit(
        self, model: keras.Model, data: Any, verbose: bool, rate_set_by: str
    ) -> None:
        """Checks a training before its first step; the chief prints a summary.

        Args:
            model: The model.
            data: Its training data.
            verbose: Whether anything is printed.
            rate_set_by: The callbacks that set the learning rate, as a text; empty
                without any.

        Raises:
            ClusterError: If the cluster was described after the strategy was made.
            MismatchError: If the workers hold different weights.
            ShardingError: On a TPU, if a batch is of a size that the model's optimizer
                cannot update with.
        """
        self._check_fit(model, data)
        if self.strategy.num_workers > 1:
            self._begin_weights(model, "fit")
        # On all workers: looking at the first batch may be a collective.
        replicas = self.strategy.num_replicas_in_sync
        line = fit_summary(self._trained_by(), replicas, model, data, rate_set_by)
        if verbose and self.strategy.rank == 0:
            print(f"fastnet: {line}", flush=True)
        self._say_how_state_is_combined(model, trains=True)

    def _say_how_state_is_combined(self, model: keras.Model, *, trains: bool) -> None:
        """Prints, once on the chief, what the program's own metrics and layers get."""
        if self.strategy.num_replicas_in_sync < 2 or self.strategy.rank:
            return
        for text in keras_models.describe_own_state(model, trains=trains):
            if text not in self._said:
                self._said.add(text)
                print(f"fastnet: {text}", flush=True)

    def note(self, text: str, *numbers: int) -> None:
        """Records what this worker is doing; see `FlightRecorder.note`.

        Args:
            text: A text, with `{}` for each number.
            *numbers: The numbers.
        """
        if self.recorder is not None:
            self.recorder.note(text, *numbers)

    def begin_test(
        self, model: keras.Model, call: Literal["evaluate", "predict"]
    ) -> None:
        """Checks an evaluation or prediction before its first step.

        Args:
            model: The model.
            call: Which of them.

        Raises:
            MismatchError: If the workers hold different weights.
        """
        if self.strategy.num_workers > 1:
            self._begin_weights(model, call)
        if call == "evaluate":
            self._say_how_state_is_combined(model, trains=False)

    def end_epoch(self, model: keras.Model, epoch: int, stop: bool) -> bool:
        """Compares the workers' weights, and whether any wants to stop.

        Args:
            model: The model.
            epoch: The epoch, from 0.
            stop: Whether this worker wants to.

        Returns:
            Whether any worker wants to.

        Raises:
            MismatchError: If the workers hold different weights.
        """
        if self.strategy.num_workers < 2:
            return stop
        return self._weights.end_epoch(model, epoch, stop)

    def _begin_weights(self, model: keras.Model, call: str) -> None:
        """Gives new variables of a model the chief's values, and compares all."""
        variables = list(model.variables)
        if getattr(model, "optimizer", None) is not None:
            variables += optimizers.variables_of(model.optimizer)
        changed = self.strategy.extended.initial_values.agree_on(
            map(values.tensorflow_variable, variables),
            self.workers,
            f"the first step of `{call}`",
        )
        if changed and upstream.global_seed() is not None and self.strategy.rank == 0:
            # A seed would have made them equal.
            number = count(changed, "variable")
            print(f"fastnet: {number} of the model set to the chief's values")
        self._weights.begin(model, call)

    def _agree_on_used(self) -> None:
        """Gives new variables that a step uses the chief's values."""
        if self.strategy.num_workers > 1:
            self.strategy.extended.initial_values.agree_on_used(
                self.workers, "a call of `strategy.run`"
            )

    def note_loss(
        self, kind: Literal["scalar", "metric", "elements", "accumulated"]
    ) -> None:
        """Prints once how a loss is interpreted that may mean several things.

        Args:
            kind: A scalar from a loss function, or from a metric's; a tensor that
                `add_loss` or the gradient of a program's own step is given; or
                gradients that a program adds up in variables.
        """
        if kind in self._noted_losses or self.strategy.rank:
            return
        self._noted_losses.add(kind)
        texts = {
            "scalar": "a loss function returns a scalar, which is taken for the "
            f"{self.scalar_losses} over each replica's examples. Where it couples "
            "examples of a batch, as Dice over the batch axis does, several replicas "
            "differ from one device.",
            "metric": "a metric function returns a scalar, which is taken for the mean "
            "over each replica's examples. Where it couples examples of a batch, as an "
            "F1 or the root of a mean does, several replicas differ from one device: "
            "use a keras.metrics.Metric, whose sums are added up.",
            "elements": "a loss with an axis is taken for a sum over the examples if "
            "it is as long as a replica's batch, and otherwise for the same on all "
            "replicas, as a penalty on weights is. Reduce it to a scalar, such as "
            "`ops.sum(penalties)`, if it could be either.",
            "accumulated": "gradients that a step adds up in variables are weighed by "
            "the examples of its last batch, which is right for batches of one size. "
            "For others use LargeBatchOptimizer(optimizer, accumulation_steps), or add "
            "up tf.distribute.get_replica_context().all_reduce('MEAN', gradients).",
        }
        print(f"fastnet: {texts[kind]}", flush=True)

    def replica_seed(self, seed: tf.Tensor) -> tf.Tensor:
        """Returns this replica's own seed.

        Args:
            seed: Shape `(2,)`, equal on all replicas.

        Returns:
            The same on replica 0, so that it draws what one device draws.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        offset = seed_offset(tf.cast(replica, tf.int64))
        return seed + tf.cast(tf.stack([offset, 0]), seed.dtype)

    def _own_position(self) -> int:
        """Returns which share of a global batch the replica of this thread takes."""
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        extended = self.strategy.extended
        return extended.position(extended._get_local_replica_id(replica))

    def _own_share(self, batch: Any) -> GlobalBatch:
        """Returns a replica's share of what Keras gives its step.

        Args:
            batch: The share itself, or, from `train_on_batch` and its relatives, the
                whole batch.
        """
        if isinstance(batch, GlobalBatch):
            return batch
        replicas = self.strategy.num_replicas_in_sync
        # Not on an accelerator, which needs the share only.
        with tf.device("CPU:0"):
            return with_examples(batch, self._own_position(), replicas)

    def _predictions(self, step: ModelStep, batch: GlobalBatch) -> Any:
        """Returns the predictions for a replica's share, fillers left out."""
        outputs = step(batch.data)
        refuse_unequal_outputs(outputs)
        return tf.nest.map_structure(lambda output: output[: batch.own], outputs)

    def _check_fit(self, model: keras.Model, data: Any) -> None:
        """Raises if the strategy cannot train a model on its data."""
        self._check_plain_fit()
