"""Where Keras fetches data: shares of a global batch, whose end is no step."""

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers.data_adapters import array_data_adapter, py_dataset_adapter

from keras_fastnet._keras.keras3.compiling import traced_for_strategy
from keras_fastnet._keras.keras3.models import (
    build_by_step,
    is_overridden,
    model_step,
)
from keras_fastnet._keras.keras3.scope_hooks import move_own_into_scope
from keras_fastnet._keras.keras3.training_data import IteratorData
from keras_fastnet._keras.protocols import HookedStrategy, counts_alone
from keras_fastnet._keras.scopes import refuse_no_scope
from keras_fastnet._keras.tensorflow import shuffled_by_epoch
from keras_fastnet._keras.training_data import note_data
from keras_fastnet._keras.wrapping import wrap


# A model without the strategy would train on every worker by itself, in silence.
@wrap(
    tf_trainer.TensorFlowTrainer,
    "make_train_function",
    stock=(
        "A model made outside the scope trains on each worker alone, without an error."
    ),
    until="Keras raises an error for it.",
)
def _in_scope_only(original, model, force=False):
    refuse_no_scope(model, model._distribute_strategy is not None)
    _build_for(model, "train", model.train_function, force)
    return original(model, force)


@wrap(
    tf_trainer.TensorFlowTrainer,
    "make_test_function",
    stock=(
        "Variables that a step of the user's makes are unknown until it has been "
        "traced for a replica."
    ),
    until="Keras builds such models before the first step.",
)
def _build_first(original, model, force=False):
    _build_for(model, "test", model.test_function, force)
    return original(model, force)


# The examples of one step: Keras takes whatever shares TensorFlow deals out, and runs
# its own iterator once more than there are batches, which counts an empty update.
@wrap(
    tf_trainer.TFEpochIterator,
    "__init__",
    stock=(
        "Workers take the shares that TensorFlow deals out, as many steps as each has."
    ),
    until="Keras's `fit` runs on several workers by itself (keras#20585).",
)
def _with_epoch_data(original, iterator, *args, **kwargs):
    with _orders_by_epoch(kwargs.get("distribute_strategy")):
        original(iterator, *args, **kwargs)
    iterator._fastnet_steps_per_execution = iterator.steps_per_execution
    strategy = iterator._distribute_strategy
    if isinstance(strategy, HookedStrategy):
        dataset = iterator._distributed_dataset
        iterator._fastnet_data = strategy.epoch_data(dataset)
        iterator._fastnet_data.steps_per_call = iterator.steps_per_execution
        _separate_iterators(iterator.data_adapter, iterator._fastnet_data)
        iterator._fastnet_batches = strategy.agreed_batches(
            dataset, iterator._num_batches
        )
        iterator._num_batches = iterator._fastnet_batches
        order = getattr(iterator.data_adapter, "_fastnet_order", None)
        if order is not None:
            iterator._fastnet_data.on_epoch = order.assign


@wrap(
    tf_trainer.TFEpochIterator,
    "_get_iterator",
    stock=(
        "The iterator is run once more than there are batches, which counts an "
        "empty update."
    ),
    until="`TFEpochIterator` ends with the data, or `fit` takes an iterator.",
)
def _epoch_data(original, iterator):
    return getattr(iterator, "_fastnet_data", None) or original(iterator)


@wrap(
    tf_trainer.TFEpochIterator,
    "reset",
    stock="The number of batches is counted again from this worker's data.",
    until="`TFEpochIterator` keeps the number that it was given.",
)
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


@wrap(
    array_data_adapter.ArrayDataAdapter,
    "get_tf_dataset",
    stock=(
        "With a seed, arrays are shuffled in the same order in every epoch, also on "
        "one device."
    ),
    until="Keras shuffles with an operation that goes on over epochs.",
)
def _shuffle_by_epoch(original, adapter):
    if not (_by_epoch.get() and adapter._shuffle):
        return original(adapter)
    with tf.device("/CPU:0"):
        epoch = adapter._fastnet_order = tf.Variable(0, dtype=tf.int64, trainable=False)
    with shuffled_by_epoch(tf.random, epoch):
        return original(adapter)


# Keras prepares the batches of a `PyDataset` with `workers` in one queue for all
# iterators: what one of them leaves there, such as the one that only looks at the first
# batch, the next one gets in addition to its own.
def _separate_iterators(adapter: Any, data: Any) -> None:
    if isinstance(adapter, py_dataset_adapter.PyDatasetAdapter):
        adapter.enqueuer = None
        adapter._fastnet_first_only = False
        data.peeking = functools.partial(_first_only, adapter)


@wrap(
    py_dataset_adapter.PyDatasetAdapter,
    "_get_iterator",
    stock=(
        "All iterators of a `PyDataset` with `workers` share one queue: some "
        "batches come twice, others never."
    ),
    until="Each iterator has a queue.",
)
def _separate_iterator(original, adapter):
    first_only = getattr(adapter, "_fastnet_first_only", None)
    dataset = adapter.py_dataset
    if first_only:
        return iter([adapter._standardize_batch(dataset[0])])
    parallel = dataset.workers > (0 if dataset.use_multiprocessing else 1)
    if first_only is None or not parallel:
        return original(adapter)
    return _prepared_in_parallel(adapter)


def _prepared_in_parallel(adapter: Any) -> Iterator[Any]:
    dataset = adapter.py_dataset
    enqueuer = py_dataset_adapter.OrderedEnqueuer(
        dataset,
        workers=dataset.workers,
        use_multiprocessing=dataset.use_multiprocessing,
        max_queue_size=dataset.max_queue_size,
        shuffle=adapter.shuffle,
    )
    enqueuer.start()
    try:
        for batch in itertools.islice(enqueuer.get(), dataset.num_batches):
            yield adapter._standardize_batch(batch)
    finally:
        enqueuer.stop()


# A look at the first batch must not begin an epoch: `on_epoch_end`, which Keras also
# calls before the first epoch, and `on_epoch_begin` may still give it another order.
@contextlib.contextmanager
def _first_only(adapter: Any) -> Iterator[None]:
    adapter._fastnet_first_only = True
    try:
        yield
    finally:
        adapter._fastnet_first_only = False


# The first batch, which Keras takes to build the model and then drops; it also
# averages it over the replicas, which fails for structures and unequal shares. It
# builds by `call`, where one process leaves it to the first step: a model that has its
# own step may have no `call`, and optimizers that only that step knows.
@wrap(
    tf_trainer.TensorFlowTrainer,
    "_maybe_symbolic_build",
    stock=(
        "The first batch is taken to build the model, averaged over the replicas "
        "and dropped; nested inputs fail (keras#20329)."
    ),
    until="Keras builds from the dataset's `element_spec`.",
)
def _peek(original, model, iterator=None, data_batch=None):
    strategy, optimizer = model._distribute_strategy, model.optimizer
    if isinstance(strategy, HookedStrategy):
        move_own_into_scope(model)
    if iterator is not None and isinstance(strategy, HookedStrategy):
        data = iterator._get_iterator()
        _note_data(model, iterator, data)
        batch = data.peek()
        examples = _of_whole_batch(strategy.peek(data), data.examples_of_first())
    elif iterator is not None and counts_alone(model):
        data = iterator._fastnet_data = optimizer.epoch_data(
            iterator._distributed_dataset
        )
        data.steps_per_call = iterator._fastnet_steps_per_execution
        _separate_iterators(iterator.data_adapter, data)
        _note_data(model, iterator, data)
        batch = examples = data.peek()
    elif isinstance(strategy, HookedStrategy):
        batch = examples = data_batch
    else:
        original(model, iterator=iterator, data_batch=data_batch)
        return
    own_steps = is_overridden(model, "train_step") or is_overridden(model, "test_step")
    # A TPU's step is traced as a program for its cores, in which none can be made.
    if own_steps and not getattr(strategy, "compiles_all", False):
        # Past Keras, which tracks what is set.
        vars(model)["_fastnet_first"] = batch, examples
    else:
        _build(model, examples)


def _of_whole_batch(share, examples):
    """Returns what a replica's share tells of the batch that a model is built for."""

    def spec(leaf):
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
            return leaf
        return tf.TensorSpec([examples, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(spec, share)


def _build(model, examples):
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=examples)


def _build_for(model, kind, function, force):
    first = vars(model).pop("_fastnet_first", None)
    if first is None or not (function is None or force):
        return
    batch, examples = first
    if is_overridden(model, f"{kind}_step"):
        build_by_step(model, _step(model, getattr(model, f"{kind}_step")), batch)
    else:
        _build(model, examples)


def _note_data(model, iterator, data):
    iterator._fastnet_given = IteratorData(iterator, data)
    note_data(model, iterator._fastnet_given)


# Keras goes on counting the data's batches where a step takes several together, as if
# `steps_per_execution` changed between epochs.
@wrap(
    tf_trainer.TFEpochIterator,
    "__iter__",
    stock="A step of several micro-batches is counted as one batch.",
    until="Keras lets a step say how many batches it takes.",
)
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


# Micro-batches: an optimizer that adds them up has to know how many examples each
# holds, and when an epoch has no more of them. Several replicas are told by the step.
# There Keras would also have XLA compile the step with the collectives in its middle.
@wrap(
    tf_trainer.TensorFlowTrainer,
    "_make_function",
    stock=(
        "The step is compiled by XLA with the collectives in it, and knows no "
        "shares of a batch."
    ),
    until="Keras lets a strategy wrap and compile the step.",
)
def _make_step(original, model, step):
    with traced_for_strategy(model):
        return original(model, _step(model, step))


def _step(model, step):
    trains = step == model.train_step
    if counts_alone(model) and trains:
        step = model.optimizer.counted_step(step)
    if isinstance(model.distribute_strategy, HookedStrategy):
        return model_step(model, step, "train" if trains else "test")
    return step


@wrap(
    tf_trainer.TensorFlowTrainer,
    "make_predict_function",
    stock="As in `_make_function`, for `predict`.",
    until="As for `_make_function`.",
)
def _make_predict_step(original, model, *args, **kwargs):
    with traced_for_strategy(model):
        return original(model, *args, **kwargs)
