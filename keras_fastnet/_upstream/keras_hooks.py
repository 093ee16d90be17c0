"""The places where Keras 3 has to learn about several workers and micro-batches.

Keras offers no public seam here, so some of its functions are wrapped, once, when the
first `TorusStrategy` or `LargeBatchOptimizer` is made. Every wrapper asks whether one
of them is active and otherwise calls Keras's own code, so that nothing else changes.
keras#20585 is the thread whose end would let most of this file go.
"""

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.callbacks.progbar_logger import ProgbarLogger
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator
from keras.src.trainers.data_adapters import array_data_adapter

from keras_fastnet._upstream.hooked import (
    HookedCallback,
    HookedOptimizer,
    HookedStrategy,
)
from keras_fastnet._upstream.tensorflow import dataset_seed
from keras_fastnet._upstream.training_data import TrainingData, data_of, note_data

_hooks: list[tuple[Any, str, Callable[..., Any]]] = []
_installed: set[tuple[Any, str]] = set()
_strategies: "weakref.WeakSet[Any]" = weakref.WeakSet()


def heed(strategy: HookedStrategy) -> None:
    """Makes Keras heed `strategy`.

    Args:
        strategy: A `tf.distribute.Strategy`.

    Raises:
        ImportError: This Keras lacks what must be wrapped.
    """
    _strategies.add(strategy)
    install()


def install() -> None:
    """Wraps the functions of Keras, where that has not been done.

    Raises:
        ImportError: This Keras lacks what must be wrapped.
    """
    for owner, name, wrapper in _hooks:
        if (owner, name) in _installed:
            continue
        if not hasattr(owner, name):
            raise ImportError(
                "keras_fastnet supports Keras 3.10 to 3.15, whose insides it adapts to "
                f"several workers. Received: Keras {keras.__version__}, where "
                f"`{owner.__name__}.{name}` is missing. Install another Keras, or a "
                "newer keras_fastnet."
            )
        setattr(owner, name, _wrapped(getattr(owner, name), wrapper))
        _installed.add((owner, name))


def keep_off_progress_bar(*prefixes: str) -> None:
    """Keeps logs out of Keras's progress bar, which would not be one line any more.

    Args:
        prefixes: How the names of the logs begin.
    """
    _off_progress_bar.update(prefixes)
    install()


@contextlib.contextmanager
def reduced(gradients: list[Any]) -> Iterator[list[Any]]:
    """Sums gradients over the replicas, unless they are sums already.

    Args:
        gradients: This replica's, `None` where there is none.

    Yields:
        The sums. Optimizers that are called within take them as such.
    """
    strategy = _in_replica()
    if strategy is None or strategy.step.reduced:
        yield gradients
        return
    with strategy.reduced_gradients(gradients) as sums:
        yield sums


def keras_step() -> Any:
    """Returns the `ReplicaStep` of the Keras step that this code is part of, if any."""
    strategy = _in_replica()
    return None if strategy is None or strategy.step.share is None else strategy.step


def _wrapped(original: Callable, wrapper: Callable) -> Callable:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return function


def _hook(owner: Any, name: str) -> Callable[[Callable], Callable]:
    def register(wrapper: Callable) -> Callable:
        _hooks.append((owner, name, wrapper))
        return wrapper

    return register


def _in_replica() -> HookedStrategy | None:
    """The strategy in whose replica this code runs."""
    if tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, HookedStrategy) else None


# A model without the strategy would train on every worker by itself, in silence.
@_hook(tf_trainer.TensorFlowTrainer, "make_train_function")
def _refuse_no_scope(original, model, *args, **kwargs):
    replicas = max((s.num_replicas_in_sync for s in _strategies), default=1)
    if replicas > 1 and model._distribute_strategy is None:
        raise ValueError(
            "A model must be made within `with strategy.scope():` to be trained on "
            f"several replicas. Received: {model.name!r}, made outside, while a "
            f"strategy with {replicas} replicas exists. Move its layers and `compile` "
            "into the scope."
        )
    return original(model, *args, **kwargs)


# The examples of one step: Keras takes whatever shares TensorFlow deals out, and runs
# its own iterator once more than there are batches, which counts an empty update.
@_hook(tf_trainer.TFEpochIterator, "__init__")
def _with_epoch_data(original, iterator, *args, **kwargs):
    with _orders_by_epoch(kwargs.get("distribute_strategy")):
        original(iterator, *args, **kwargs)
    iterator._fastnet_steps_per_execution = iterator.steps_per_execution
    strategy = iterator._distribute_strategy
    if isinstance(strategy, HookedStrategy):
        dataset = iterator._distributed_dataset
        iterator._fastnet_data = strategy.epoch_data(dataset)
        iterator._fastnet_batches = strategy.agreed_batches(
            dataset, iterator._num_batches
        )
        iterator._num_batches = iterator._fastnet_batches
        order = getattr(iterator.data_adapter, "_fastnet_order", None)
        if order is not None:
            iterator._fastnet_data.on_epoch = order.assign


@_hook(tf_trainer.TFEpochIterator, "_get_iterator")
def _epoch_data(original, iterator):
    return getattr(iterator, "_fastnet_data", None) or original(iterator)


@_hook(tf_trainer.TFEpochIterator, "reset")
def _keep_batches(original, iterator):
    original(iterator)
    if hasattr(iterator, "_fastnet_batches"):
        iterator._num_batches = iterator._fastnet_batches


# Keras shuffles arrays with an operation that begins anew with every epoch's iterator:
# once a seed is set, every epoch has the same order.
_by_epoch = contextvars.ContextVar("_by_epoch", default=False)


@contextlib.contextmanager
def _orders_by_epoch(strategy: Any) -> Iterator[None]:
    token = _by_epoch.set(isinstance(strategy, HookedStrategy))
    try:
        yield
    finally:
        _by_epoch.reset(token)


@_hook(array_data_adapter.ArrayDataAdapter, "get_tf_dataset")
def _shuffle_by_epoch(original, adapter):
    if not (_by_epoch.get() and adapter._shuffle):
        return original(adapter)
    with tf.device("/CPU:0"):
        epoch = adapter._fastnet_order = tf.Variable(0, dtype=tf.int64, trainable=False)
    seed = tf.constant(dataset_seed(), tf.int64)

    def shuffle(value: tf.Tensor) -> tf.Tensor:
        seeds = tf.stack([seed, epoch.read_value()])
        return tf.random.experimental.stateless_shuffle(value, seeds)

    plain, tf.random.shuffle = tf.random.shuffle, shuffle
    try:
        return original(adapter)
    finally:
        tf.random.shuffle = plain


# The first batch, which Keras takes to build the model and then drops; it also
# averages it over the replicas, which fails for structures and unequal shares.
@_hook(tf_trainer.TensorFlowTrainer, "_maybe_symbolic_build")
def _peek(original, model, iterator=None, data_batch=None):
    strategy, optimizer = model._distribute_strategy, model.optimizer
    if iterator is not None and isinstance(strategy, HookedStrategy):
        data = iterator._get_iterator()
        _note_data(model, iterator, data)
        data_batch = strategy.peek(data)
        iterator = None
    elif iterator is not None and _counts(model):
        data = iterator._fastnet_data = optimizer.epoch_data(
            iterator._distributed_dataset
        )
        _note_data(model, iterator, data)
        # As under a strategy: a function that makes variables is traced twice.
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=data.peek())
    return original(model, iterator=iterator, data_batch=data_batch)


def _note_data(model, iterator, data):
    iterator._fastnet_given = TrainingData(iterator, data)
    note_data(model, iterator._fastnet_given)


# Keras goes on counting the data's batches where a step takes several together, as if
# `steps_per_execution` changed between epochs.
@_hook(tf_trainer.TFEpochIterator, "__iter__")
def _count_batches(original, iterator):
    data = getattr(iterator, "_fastnet_data", None)
    if data is not None:
        iterator.steps_per_execution = (
            iterator._fastnet_steps_per_execution * data.batches_per_step
        )
    begun = original(iterator)
    if hasattr(iterator, "_fastnet_given"):
        iterator._fastnet_given.begin_epoch()
    return begun


# The weight of a replica in the mean: Keras gives every replica 1/N, however few
# examples it has.
@_hook(keras_loss, "scale_loss_for_distribution")
def _weigh(original, value):
    step = keras_step()
    return original(value) if step is None else step.weigh(value)


@_hook(keras_loss, "unscale_loss_for_distribution")
def _unweigh(original, value):
    step = keras_step()
    return original(value) if step is None else step.unweigh(value)


_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


# What is no mean over the examples by itself: sums, in which fillers must not count,
# means over weights, and scalars, of which nobody can tell what they are.
@_hook(keras_loss, "reduce_values")
def _reduce_exactly(original, values, sample_weight=None, reduction="mean"):
    step = keras_step()
    if step is None:
        return original(values, sample_weight, reduction)
    if reduction in _MEANS and values.shape.rank == 0:
        raise ValueError(
            "A loss function must return a value for each example, of which several "
            "replicas can take the mean. Received: one that returns a scalar. Leave "
            "out its last `mean`; or, if it is a sum over the examples, make it a "
            '`keras.losses.Loss` with `reduction="sum"`.'
        )
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weight = tf.cast(tf.reduce_sum(sample_weight), values.dtype)
        (weights,) = _sums_of_own([weight])
        return tf.math.divide_no_nan(step.own(tf.reduce_sum(values)), weights)
    if reduction in _MEANS:
        return original(values, sample_weight, reduction)
    return step.own(original(values, sample_weight, reduction))


@_hook(keras_loss, "apply_mask")
def _mask_exactly(original, sample_weight, mask, dtype, reduction):
    if keras_step() is None or mask is None or reduction not in _MEANS[:2]:
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)
    masked = original(sample_weight, mask, dtype=dtype, reduction="sum")
    counted = tf.cast(mask, tf.float32)
    total, valid = _sums_of_own(
        [tf.cast(tf.size(counted), tf.float32), tf.reduce_sum(counted)]
    )
    return masked * tf.cast(tf.math.divide_no_nan(total, valid), masked.dtype)


def _sums_of_own(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over the replicas that have examples."""
    own = [keras_step().own(value) for value in values]
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, own
    )


# The sum over replicas comes first: Keras unscales, tests for overflow and clips each
# replica's own gradients (tensorflow#33929, horovod#1346).
@_hook(base_optimizer.BaseOptimizer, "apply")
@_hook(loss_scale_optimizer.LossScaleOptimizer, "apply")
def _reduce_first(original, optimizer, grads, trainable_variables=None):
    with reduced(grads) as sums:
        return original(optimizer, sums, trainable_variables)


@_hook(tf_optimizer.TFOptimizer, "_all_reduce_sum_gradients")
def _reduce_once(original, optimizer, grads_and_vars):
    strategy = _in_replica()
    if strategy is not None and strategy.step.reduced:
        return list(grads_and_vars)
    return original(optimizer, grads_and_vars)


# Micro-batches: an optimizer that adds them up has to know how many examples each
# holds, and when an epoch has no more of them. Several replicas are told by the step.
@_hook(tf_trainer.TensorFlowTrainer, "_make_function")
def _count_examples(original, model, step):
    if _counts(model) and step == model.train_step:
        step = model.optimizer.counted_step(step)
    return original(model, step)


def _counts(model: keras.Model) -> bool:
    """Whether an optimizer has to be told, on one device, what a step holds."""
    return (
        isinstance(model.optimizer, HookedOptimizer)
        and model.distribute_strategy.num_replicas_in_sync == 1
    )


_in_epoch: "weakref.WeakSet[CallbackList]" = weakref.WeakSet()


@_hook(CallbackList, "on_epoch_begin")
def _begin_epoch(original, callbacks, *args, **kwargs):
    _in_epoch.add(callbacks)
    if optimizer := _hooked_optimizer(callbacks):
        optimizer.begin_epoch()
    return original(callbacks, *args, **kwargs)


# Validation within `fit` is called on the same list.
@_hook(CallbackList, "on_test_begin")
def _finish_before_validation(original, callbacks, *args, **kwargs):
    _end_epoch(callbacks)
    return original(callbacks, *args, **kwargs)


@_hook(CallbackList, "on_epoch_end")
def _finish_epoch(original, callbacks, *args, **kwargs):
    _end_epoch(callbacks)
    original(callbacks, *args, **kwargs)
    _stop_together(callbacks)


def _end_epoch(callbacks: CallbackList) -> None:
    optimizer = _hooked_optimizer(callbacks)
    if optimizer and callbacks in _in_epoch:
        optimizer.end_epoch()
    _in_epoch.discard(callbacks)


def _hooked_optimizer(callbacks: CallbackList) -> HookedOptimizer | None:
    optimizer = getattr(callbacks.model, "optimizer", None)
    return optimizer if isinstance(optimizer, HookedOptimizer) else None


# Files have one writer. Every worker would write the same paths (tensorflow#38635).
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


@_hook(CallbackList, "__init__")
def _only_the_chief_writes(original, callbacks, given=None, *args, **kwargs):
    strategy = _strategy_of(kwargs.get("model"))
    if strategy is not None:
        given = tree.flatten(given) if given else []
        if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in given):
            raise ValueError(
                "A TorusStrategy needs backups that one worker writes and that hold "
                "the position in the data. Received: keras.callbacks.BackupAndRestore. "
                "Use keras_fastnet.callbacks.BackupAndRestore, which takes the same "
                "arguments."
            )
        if strategy.rank:
            given = [c for c in given if not isinstance(c, _WRITERS)]
    original(callbacks, given, *args, **kwargs)
    for callback in callbacks.callbacks:
        if isinstance(callback, HookedCallback):
            callback.siblings = callbacks.callbacks


@_hook(CallbackList, "on_train_begin")
def _announce(original, callbacks, logs=None):
    original(callbacks, logs)
    strategy = _strategy_of(callbacks.model)
    data = data_of(callbacks.model)
    if strategy is not None and data is not None and callbacks.params.get("verbose"):
        strategy.announce(callbacks.model, data)


# Workers stop together: who left an epoch alone would leave the others waiting.
@_hook(CallbackList, "on_train_batch_end")
def _stop_at_the_end(original, callbacks, batch, logs=None):
    original(callbacks, batch, logs)
    model = callbacks.model
    strategy = _strategy_of(model)
    if strategy is None or strategy.num_workers < 2 or not model.stop_training:
        return
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks.callbacks):
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            # The same on all workers.
            return
    model.stop_training = False
    _stops.add(callbacks)


def _stop_together(callbacks: CallbackList) -> None:
    model = callbacks.model
    strategy = _strategy_of(model)
    if strategy is None or strategy.num_workers < 2:
        return
    wanted = model.stop_training or callbacks in _stops
    _stops.discard(callbacks)
    model.stop_training = strategy.any_worker(wanted)


_stops: "weakref.WeakSet[CallbackList]" = weakref.WeakSet()


def _strategy_of(model: Any) -> HookedStrategy | None:
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if isinstance(strategy, HookedStrategy) else None


_off_progress_bar: set[str] = set()


@_hook(ProgbarLogger, "on_epoch_end")
def _short_bar(original, bar, epoch, logs=None):
    hidden = tuple(_off_progress_bar)
    shown = {k: v for k, v in (logs or {}).items() if not k.startswith(hidden)}
    return original(bar, epoch, shown)


# Random streams: all replicas hold the same seed state, and so drop the same units.
@_hook(seed_generator.SeedGenerator, "next")
def _own_stream(original, generator, *args, **kwargs):
    seed = original(generator, *args, **kwargs)
    strategy = _in_replica()
    return seed if strategy is None else strategy.replica_seed(seed)
