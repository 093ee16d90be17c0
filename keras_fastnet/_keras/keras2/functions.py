"""The functions of Keras 2's loops, which fetch batches outside the traced step."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.active_strategy import counts_alone
from keras_fastnet._keras.keras2 import internal, models
from keras_fastnet._keras.keras2.data import takes_epoch_data
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import refuse_no_scope
from keras_fastnet._keras.wrapping import wrap

_training = internal("engine.training")
_Model = _training.Model


@wrap(
    _Model,
    "make_train_function",
    stock=(
        "The step fetches within the traced function, and knows no shares of a batch."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _train(original, model, force=False):
    refuse_no_scope(model, model._distribution_strategy is not None)
    if not takes_epoch_data(model):
        return original(model, force)
    if model.train_function is None or force:
        step = model.train_step
        if counts_alone(model):
            step = model.optimizer.counted_step(step)
        model.train_function = _function(model, step, model._train_counter)
    return model.train_function


@wrap(
    _Model,
    "make_test_function",
    stock="As in `make_train_function`.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _test(original, model, force=False):
    if not takes_epoch_data(model):
        return original(model, force)
    if model.test_function is None or force:
        model.test_function = _function(model, model.test_step, model._test_counter)
    return model.test_function


@wrap(
    _Model,
    "make_predict_function",
    stock="As in `make_train_function`.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _predict(original, model, force=False):
    if not takes_epoch_data(model):
        return original(model, force)
    if model.predict_function is None or force:
        # Not a method: `Strategy.run` tells it from steps with metrics by that.
        def step(batch: Any) -> Any:
            return model.predict_step(batch)

        step.fastnet_model = model  # type: ignore[attr-defined]
        one = _function(model, step, model._predict_counter)

        def function(iterator: Any) -> Any:
            steps = int(model._steps_per_execution.numpy())
            parts = [one(iterator, 1)]
            for _ in range(steps - 1):
                try:
                    parts.append(one(iterator, 1))
                except tf.errors.OutOfRangeError:
                    break
            return tf.nest.map_structure(lambda *p: _training.concat(p), *parts)

        model.predict_function = function
    return model.predict_function


def _function(model: Any, step: Callable[..., Any], counter: Any) -> Callable[..., Any]:
    """Returns what a loop calls with an iterator, for one or several steps."""
    strategy = model.distribute_strategy
    run = step
    if model.jit_compile and strategy.num_replicas_in_sync == 1:
        run = tf.function(step, jit_compile=True, reduce_retracing=True)

    def one_step(batch: Any) -> Any:
        outputs = strategy.run(run, args=(batch,))
        counter.assign_add(1)
        return _reduced(model, outputs, "concat" if _predicts(step) else "mean")

    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True)

    def function(iterator: Any, steps: int | None = None) -> Any:
        count = steps or int(model._steps_per_execution.numpy())
        for _ in range(count):
            batch = next(iterator)
            if not _predicts(step):
                _build(model, batch)
            outputs = one_step(batch)
        return outputs

    return function


def _predicts(step: Callable[..., Any]) -> bool:
    return hasattr(step, "fastnet_model")


def _reduced(model: Any, outputs: Any, how: str) -> Any:
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return outputs
    asked = model.distribute_reduction_method
    if how == "mean" and asked == "auto":
        # Keras takes the sum, also of metrics.
        return tf.nest.map_structure(functools.partial(_mean, strategy), outputs)
    how = asked if how == "mean" else how
    return _training.reduce_per_replica(outputs, strategy, how)


def _mean(strategy: Any, value: Any) -> Any:
    known = strategy.num_workers == 1 and isinstance(value, tf.Tensor)
    return value if known else strategy.reduce("MEAN", value)


def _build(model: Any, batch: Any) -> None:
    local_results = model.distribute_strategy.experimental_local_results

    def examples() -> Any:
        return tf.nest.map_structure(
            lambda value: local_results(value)[0],
            getattr(batch, "data", batch),
        )

    models.build_for(model, examples)


@contextlib.contextmanager
def compiled_forward(model: keras.Model) -> Iterator[None]:
    """Raises an error: with Keras 2, XLA compiles no part of a step.

    Args:
        model: The model.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "XLA cannot compile a step that communicates with other replicas; with Keras 3 "
        f"its parts are compiled. Received: `jit_compile=True` with {keras.__name__} "
        f"{keras.__version__} and several replicas. Leave `jit_compile` out."
    )
    yield
