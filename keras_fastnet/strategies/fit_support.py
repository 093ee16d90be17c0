"""The side of a strategy of ours that Keras's steps and optimizers talk to."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import functions, optimizers, values
from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.other_keras import refuse_other_step
from keras_fastnet._keras.protocols import ModelStep, compiles_parts, seed_offset
from keras_fastnet._keras.replica_step import ReplicaStep
from keras_fastnet._keras.training import TrainingData
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    bounds,
    without_optionals,
)
from keras_fastnet.strategies.data_support import DataSupport
from keras_fastnet.strategies.fit_steps import (
    differentiable_sums,
    run_step,
    sum_over_replicas,
)
from keras_fastnet.text import count


class _Agreed:
    """A value that is known to be equal on all replicas: no need to reduce it."""

    def __init__(self, value: Any):
        self.value = value


def checked_scalar_losses(kind: Any) -> Literal["mean", "sum"]:
    """Returns a strategy's argument `scalar_losses`.

    Args:
        kind: The argument.

    Raises:
        ValueError: It is neither `"mean"` nor `"sum"`.
    """
    if kind not in ("mean", "sum"):
        raise ValueError(
            '`scalar_losses` must be "mean" or "sum": what a scalar is that a loss '
            f"function returns. Received: scalar_losses={kind!r}."
        )
    return kind


class KerasSupport(DataSupport):
    """What Keras's steps, and the hooks in them, ask a strategy for. A mixin."""

    _noted_scalar_loss = False

    @property
    def step(self) -> ReplicaStep:
        """What this thread's replica knows of its step."""
        return self.extended.step

    def run(self, fn, args=(), kwargs=None, options=None):
        """Runs `fn` on each replica, as `tf.distribute.Strategy.run`.

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
        if step is None:
            return super().run(fn, args, kwargs, options)
        if self.num_replicas_in_sync < 2:
            return super().run(step.function, args, kwargs, options)
        return self._run_step(step, args[0], options)

    def _run_step(self, step: ModelStep, batch: Any, options: Any) -> Any:
        """Runs one of Keras's steps on each replica.

        Args:
            step: The step.
            batch: What Keras gives it.
            options: `tf.distribute.RunOptions`.
        """
        agreed: list[Any] = []
        compiled = compiles_parts(step.model)

        def on_replica(batch):
            batch = self._own_share(batch)
            batch = batch._replace(data=without_optionals(batch.data))
            with (
                self.step.of_batch(batch.own, batch.examples, compiled),
                differentiable_sums(self.step),
                functions.compiled_forward(step.model)
                if compiled
                else contextlib.nullcontext(),
            ):
                if step.kind == "predict":
                    return self._predictions(step, batch)
                outputs, exact = run_step(step, batch, self.step)
                agreed.append(exact)
                return outputs

        with keras_models.results_over_replicas(step.model):
            outputs = super().run(on_replica, (batch,), None, options)
        if step.kind == "predict":
            return outputs

        def agreed_on(output: Any, exact: bool) -> Any:
            if not exact:
                return output
            first = self.experimental_local_results(output)[0]
            # Keras reduces only what several workers return.
            return _Agreed(first) if self.num_workers > 1 else first

        return tf.nest.map_structure(agreed_on, outputs, agreed[0])

    def reduce(self, reduce_op, value, axis=None):
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

        def reduce_one(v):
            own = self.experimental_local_results(v)[0]
            scalar = tf.convert_to_tensor(own).shape.rank == 0
            return super(KerasSupport, self).reduce(
                reduce_op, v, axis=None if scalar else axis
            )

        return tf.nest.map_structure(reduce_one, value)

    @contextlib.contextmanager
    def reduced_gradients(self, gradients: list[Any]) -> Iterator[list[Any]]:
        """Sums gradients over the replicas.

        Args:
            gradients: This replica's, `None` where there is none.

        Yields:
            The sums, in the same order.
        """
        present = [g for g in gradients if g is not None]
        sums = iter(sum_over_replicas(present) if present else [])
        with self.step.with_reduced_gradients():
            yield [None if g is None else next(sums) for g in gradients]

    def begin_fit(self, model: keras.Model, data: TrainingData, verbose: bool) -> None:
        """Looks once more before training; the chief says what it is going to do.

        Args:
            model: The model.
            data: Its training data.
            verbose: Whether anything is said.

        Raises:
            ClusterError: The cluster was described after the strategy was made.
            ShardingError: On a TPU, a batch is of a size that the model's optimizer
                cannot update with.
        """
        self._check_fit(model, data)
        # On all workers: looking at the first batch may be a collective.
        line = start_line(self.who(), self.num_replicas_in_sync, model, data)
        if verbose and self.rank == 0:
            print(f"fastnet: {line}", flush=True)

    def note_scalar_loss(self) -> None:
        """Says once that a loss function returns a scalar, and what it is taken for."""
        if self._noted_scalar_loss or self.rank:
            return
        self._noted_scalar_loss = True
        print(
            "fastnet: a loss function returns a scalar, which is taken for the "
            f"{self.scalar_losses} over each replica's examples. Where it couples "
            "examples of a batch, as Dice over the batch axis does, several replicas "
            "differ from one device.",
            flush=True,
        )

    def any_worker(self, own: bool) -> bool:
        """Returns whether something holds on any worker. All of them must ask.

        Args:
            own: Whether it holds on this one.
        """
        return any(n for (n,) in self.of_all_workers(tf.constant([own], tf.int64)))

    def from_chief(self, data: bytes) -> bytes:
        """Returns the chief's bytes, on all workers, which must all call.

        Args:
            data: This worker's, of which only the chief's count.
        """
        if self.num_workers < 2:
            return data
        own = data if self.rank == 0 else b""
        (size,) = self._sum_over_workers(tf.constant([len(own)], tf.int64)).numpy()
        numbers = np.zeros(-(-size // 8), np.int64)
        numbers.view(np.uint8)[: len(own)] = np.frombuffer(own, np.uint8)
        sums = self._sum_over_workers(tf.constant(numbers)).numpy()
        return sums.view(np.uint8)[:size].tobytes()

    def own_rows(self, batch: int) -> tuple[int, int]:
        """Returns where this replica's share of a global batch begins and ends.

        Args:
            batch: Number of examples of the batch.
        """
        start, stop = bounds(batch, self._own_position(), self.num_replicas_in_sync)
        # One row for the filler of a replica without examples.
        return start, max(stop, start + 1)

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

    def who(self) -> str:
        """Returns who trains, for people."""
        raise NotImplementedError

    def _own_position(self) -> int:
        """Returns which share of a global batch the replica of this thread takes."""
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        return self.extended.position(self.extended._get_local_replica_id(replica))

    def _own_share(self, batch: Any) -> GlobalBatch:
        """Returns a replica's share of what Keras gives its step.

        Args:
            batch: The share itself, or, from `train_on_batch` and its relatives, the
                whole batch.
        """
        return batch

    def _predictions(self, step: ModelStep, batch: GlobalBatch) -> Any:
        """Returns what a predict step says of a replica's share."""
        return step(batch.data)

    def _check_fit(self, model: keras.Model, data: TrainingData) -> None:
        """Refuses what cannot be trained."""


def start_line(who: str, replicas: int, model: keras.Model, data: TrainingData) -> str:
    """Returns who trains, on what and in which steps, in one line.

    Args:
        who: Who trains.
        replicas: Number of replicas.
        model: The model, compiled.
        data: Its training data.
    """
    parts = [who, _update(replicas, model, data), _epoch(model, data)]
    if data.elements.sharding:
        parts.append(data.elements.sharding)
    rates = dict.fromkeys(map(_rate, optimizers.innermost(model.optimizer)))
    return "; ".join([*parts, *rates])


def _update(replicas: int, model: keras.Model, data: TrainingData) -> str:
    batch = data.elements.examples_of_first()
    text = count(batch, "example") + " a step"
    if replicas > 1:
        text += f" (up to {-(-batch // replicas):,} a replica)"
    steps = _accumulation(model)
    return text if steps == 1 else f"{text}, {batch * steps:,} in {steps} an update"


def _epoch(model: keras.Model, data: TrainingData) -> str:
    if data.batches is None:
        return "epochs of unknown length"
    batch = data.elements.examples_of_first()
    examples = f"up to {data.batches * batch:,} examples"
    if data.examples is not None:
        examples = count(data.examples, "example")
    updates = -(-data.batches // _accumulation(model))
    steps = count(data.batches, "step")
    return f"{examples}, {steps} and {count(updates, 'update')} an epoch"


def _rate(optimizer: Any) -> str:
    schedule = optimizers.schedule_of(optimizer)
    rate = f"{float(values.to_numpy(optimizer.learning_rate)):.4g}"
    if schedule is not None:
        return f"learning rate {rate} at first, by {schedule}"
    return f"learning rate {rate}"


def _accumulation(model: keras.Model) -> int:
    optimizer = model.optimizer
    for name in ("accumulation_steps", "gradient_accumulation_steps"):
        steps = getattr(optimizer, name, None)
        if steps:
            return int(steps)
    return 1
