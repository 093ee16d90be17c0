"""The data of Keras 2's loops: shares of global batches, and epochs that end."""

import contextvars
import types
from typing import Any

from keras_fastnet._keras.keras2 import internal
from keras_fastnet._keras.protocols import FastnetStrategy, counts_alone, strategy_of
from keras_fastnet._keras.training import TrainingData, data_of, note_data
from keras_fastnet._keras.wrapping import wrap

_adapters = internal("engine.data_adapter")
_Model = internal("engine.training").Model


def takes_epoch_data(model: Any) -> bool:
    """Returns whether a model's steps take batches of an `EpochData`.

    Args:
        model: A compiled model.
    """
    return strategy_of(model) is not None or counts_alone(model)


# Arrays: Keras makes one dataset of all epochs, in which no epoch has an end.
_by_epochs: contextvars.ContextVar[bool]
_by_epochs = contextvars.ContextVar("_by_epochs", default=False)


@wrap(
    _adapters.DataHandler,
    "__init__",
    stock=("One dataset over arrays has all epochs, so that no epoch has an end."),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _by_epoch(original, handler, *args, **kwargs):
    model = kwargs.get("model")
    handler._fastnet_data = None
    # `Layer.adapt` names no model.
    if model is not None and not takes_epoch_data(model):
        model = None
    handler._fastnet_model = model
    if model is None or kwargs.get("steps_per_epoch") is not None:
        return original(handler, *args, **kwargs)
    token = _by_epochs.set(True)
    try:
        original(handler, *args, **kwargs)
    finally:
        _by_epochs.reset(token)


@wrap(
    _adapters.TensorLikeDataAdapter,
    "__init__",
    stock="As in `DataHandler.__init__`.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _one_epoch(original, adapter, *args, **kwargs):
    if _by_epochs.get():
        kwargs["epochs"] = 1
    original(adapter, *args, **kwargs)


# Keras wants to be told how many steps a distributed dataset has. Ours ends.
@wrap(
    _adapters.DatasetAdapter,
    "_validate_args",
    stock="A distributed dataset needs `steps_per_epoch`.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _of_any_length(original, adapter, y, sample_weights, steps, *args):
    ours = _by_epochs.get()
    if ours and _adapters._is_distributed_dataset(adapter._dataset):
        steps = 1
    original(adapter, y, sample_weights, steps, *args)


@wrap(
    _adapters.DataHandler,
    "_configure_dataset_and_inferred_steps",
    stock=(
        "Workers take the shares that TensorFlow deals out, as many steps as each has."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _with_epoch_data(original, handler, strategy, *args, **kwargs):
    original(handler, strategy, *args, **kwargs)
    model = handler._fastnet_model
    if model is None:
        return
    dataset = handler._dataset
    if isinstance(strategy, FastnetStrategy):
        data = strategy.fit_support.data.epoch_data(dataset)
        if handler._steps_per_epoch is None:
            handler._inferred_steps = strategy.fit_support.data.agreed_batches(
                dataset, handler._inferred_steps
            )
    else:
        data = model.optimizer.epoch_data(dataset)
    handler._dataset = handler._fastnet_data = data
    handler._fastnet_given = HandlerData(handler, data)
    note_data(model, handler._fastnet_given)


@wrap(
    _adapters.DataHandler,
    "enumerate_epochs",
    stock="One iterator goes on over several epochs.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _epochs(original, handler):
    if handler._fastnet_data is None:
        yield from original(handler)
        return
    adapter = handler._adapter
    # Keras goes on with one iterator over arrays and distributed datasets.
    recreate = adapter.should_recreate_iterator() or (
        handler._steps_per_epoch is None
        and type(adapter) is not _adapters.GeneratorDataAdapter
    )
    with handler._truncate_execution_to_epoch():
        iterator = None
        for epoch in range(handler._initial_epoch, handler._epochs):
            if handler._insufficient_data:
                break
            if iterator is None or recreate:
                iterator = iter(handler._dataset)
            yield epoch, iterator
            adapter.on_epoch_end()


# Batches are counted as the data has them, also where a step takes several together.
@wrap(
    _adapters.DataHandler,
    "steps",
    stock="A step of several micro-batches is counted as one batch.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _steps(original, handler):
    data = handler._fastnet_data
    if data is None:
        yield from original(handler)
        return
    given = handler._fastnet_given
    if given.first_batch:
        _trained_before.set(handler._fastnet_model)
    given.first_batch = 0
    handler._current_step, handler._initial_step = handler._initial_step, 0
    executed = handler._steps_per_execution.numpy().item()
    try:
        while not handler._insufficient_data:
            together = data.batches_per_step
            taken = executed * together
            if handler._inferred_steps is not None:
                taken = min(taken, handler._inferred_steps - handler._current_step)
            if taken <= 0:
                break
            # The last steps of an epoch may be fewer.
            steps = -(-taken // together)
            if steps != handler._steps_per_execution.numpy():
                handler._steps_per_execution.assign(steps)
            handler._step_increment = taken - 1
            yield handler._current_step
            handler._current_step += taken
    finally:
        handler._steps_per_execution.assign(executed)


@wrap(
    _Model,
    "_maybe_load_initial_counters_from_ckpt",
    stock="Only Keras's own backups say where `fit` begins.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _resume(original, model, *args, **kwargs):
    epoch, step = original(model, *args, **kwargs)
    data = data_of(model)
    if data is None:
        return epoch, step
    resumed = getattr(model, "_fastnet_initial_epoch", None)
    return (epoch if resumed is None else resumed), data.first_batch


# An epoch of which a run before has trained every batch: Keras wants logs of a step.
_trained_before: contextvars.ContextVar[Any]
_trained_before = contextvars.ContextVar("_trained_before", default=None)


@wrap(
    internal("engine.training").tf_utils,
    "sync_to_numpy_or_python_type",
    stock=(
        "An epoch without a step, whose batches an earlier run has trained, has no "
        "logs: an error."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _logs(original, tensors):
    model = _trained_before.get()
    if model is not None:
        _trained_before.set(None)
        if tensors is None:
            tensors = model.get_metrics_result()
    return original(tensors)


# `train_on_batch` and its relatives: the strategy shares out the batch of each step.
@wrap(
    _adapters,
    "single_batch_iterator",
    stock=(
        "`train_on_batch` divides a batch among the replicas, and fails where it "
        "does not divide."
    ),
    until="Never: Keras 2 has ended; goes with its support.",
)
def _single_batch(original, strategy, *args, **kwargs):
    if isinstance(strategy, FastnetStrategy):
        strategy = types.SimpleNamespace(experimental_distribute_dataset=lambda d: d)
    return original(strategy, *args, **kwargs)


class HandlerData(TrainingData):
    """The data behind Keras 2's `DataHandler`.

    Args:
        handler: Keras's handler.
        elements: The `EpochData` behind it.
    """

    def __init__(self, handler: Any, elements: Any):
        super().__init__(elements)
        self._handler = handler

    @property
    def batches(self) -> int | None:
        """Number of batches in an epoch; `None` where it is not known."""
        return self._handler.inferred_steps

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch; `None` where only reading would tell."""
        adapter = self._handler._adapter
        if not (
            self.whole_epochs and isinstance(adapter, _adapters.TensorLikeDataAdapter)
        ):
            return None
        last = adapter.partial_batch_size() or adapter.batch_size()
        return (adapter.get_size() - 1) * adapter.batch_size() + last

    @property
    def _steps_per_epoch(self) -> int | None:
        return self._handler._steps_per_epoch

    def _pass_epoch(self) -> None:
        self.elements.pass_epoch()
        self._handler._adapter.on_epoch_end()
