"""The functions of Keras 3's loops: how they are built, traced and compiled.

XLA cannot compile collectives that leave the device. So each replica's forward pass is
compiled separately, with its backward pass, and so is the update.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Literal

import keras
import tensorflow as tf
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from keras_fastnet._keras.active_strategy import (
    FastnetStrategy,
    compiles_itself,
    counts_alone,
)
from keras_fastnet._keras.keras3.data import (
    dataset_with_own_queues,
    iterate_over,
    remember_data,
)
from keras_fastnet._keras.keras3.models import (
    build_by_step,
    build_optimizer,
    is_overridden,
    model_step,
    replaced_methods,
)
from keras_fastnet._keras.keras3.scope import move_own_into_scope
from keras_fastnet._keras.keras3.trainers import TensorFlowTrainer
from keras_fastnet._keras.replica_step import compiled
from keras_fastnet._keras.scopes import refuse_no_scope
from keras_fastnet._keras.wrapping import wrap


@contextlib.contextmanager
def traced_for_strategy(model: keras.Model) -> Iterator[None]:
    """Has Keras make a model's functions so that the strategy can compile them.

    Args:
        model: A compiled model.
    """
    asked, plain = model.jit_compile, tf.function

    def traced_for_each_size(function: Any = None, **options: Any) -> Any:
        return plain(function, **{**options, "reduce_retracing": False})

    if compiles_itself(model):
        model._jit_compile = False
        if model.distribute_strategy.fit_support.compiles_all:
            # Keras asks for traces of unknown shape after the first.
            tf.function = traced_for_each_size
    try:
        yield
    finally:
        model._jit_compile = asked
        tf.function = plain


@contextlib.contextmanager
def compiled_forward(model: keras.Model) -> Iterator[None]:
    """Has XLA compile a model's forward pass, for the time of a step's tracing.

    Args:
        model: The model.

    Raises:
        ValueError: A layer of it communicates with other replicas.
    """
    layers = list(model._flatten_layers())
    _refuse_synchronized(layers)
    # Of the class: another replica's tracing may have paused with its own in place.
    call = functools.partial(type(model).call, model)

    def compiled_call(*args: Any, **kwargs: Any) -> Any:
        if any(get_keras_mask(x) is not None for x in _tensors((args, kwargs))):
            return call(*args, **kwargs)
        known = [len(layer._losses) for layer in layers]

        # What the pass leaves beside its result has to cross the border with it.
        def forward() -> Any:
            outputs = call(*args, **kwargs)
            masks = [get_keras_mask(output) for output in _tensors(outputs)]
            losses = [
                layer._losses[count:]
                for layer, count in zip(layers, known, strict=True)
            ]
            return outputs, masks, losses

        outputs, masks, losses = compiled(forward)()
        for layer, count, own in zip(layers, known, losses, strict=True):
            layer._losses[count:] = own
        for output, mask in zip(_tensors(outputs), masks, strict=True):
            if mask is not None:
                set_keras_mask(output, mask)
        return outputs

    with replaced_methods([(model, "call", compiled_call)]):
        yield


def _tensors(structure: Any) -> list[Any]:
    return [x for x in keras.tree.flatten(structure) if isinstance(x, tf.Tensor)]


def _refuse_synchronized(layers: list[keras.Layer]) -> None:
    for layer in layers:
        if getattr(layer, "synchronized", False):
            raise ValueError(
                "XLA cannot compile a forward pass that communicates with other "
                f"replicas. Received: `jit_compile=True` with {layer.name}, whose "
                "statistics are `synchronized=True`. Leave one of the two out."
            )


# The first batch, which Keras takes to build the model and then drops; it also
# averages it over the replicas, which fails for structures and unequal shares. It
# builds by `call`, where one process leaves it to the first step: a model that has its
# own step may have no `call`, and optimizers that only that step knows.
@wrap(
    TensorFlowTrainer,
    "_maybe_symbolic_build",
    stock=(
        "The first batch is taken to build the model, averaged over the replicas "
        "and dropped; nested inputs fail (keras#20329)."
    ),
    until="Keras builds from the dataset's `element_spec`.",
)
def _peek(original, model, iterator=None, data_batch=None):
    strategy, optimizer = model._distribute_strategy, model.optimizer
    if isinstance(strategy, FastnetStrategy):
        move_own_into_scope(model)
    if iterator is not None and isinstance(strategy, FastnetStrategy):
        data = iterator.data
        remember_data(model, iterator)
        batch = data.peek()
        share = strategy.fit_support.data.peek(data)
        examples = _of_whole_batch(share, data.examples_of_first())
    elif iterator is not None and counts_alone(model):
        data = optimizer.epoch_data(dataset_with_own_queues(iterator))
        iterate_over(iterator, data)
        remember_data(model, iterator)
        batch = share = examples = data.peek()
    elif isinstance(strategy, FastnetStrategy):
        batch = share = examples = data_batch
    else:
        original(model, iterator=iterator, data_batch=data_batch)
        return
    own_steps = is_overridden(model, "train_step") or is_overridden(model, "test_step")
    # A TPU's step is traced as a program for its cores, in which none can be made.
    support = getattr(strategy, "fit_support", None)
    if own_steps and not (support is not None and support.compiles_all):
        # Past Keras, which tracks what is set.
        vars(model)["_fastnet_first"] = batch, share, examples
    else:
        _build(model, share, examples)


def _of_whole_batch(share, examples):
    """Returns what a replica's share tells of the batch that a model is built for."""

    def spec(leaf):
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
            return leaf
        return tf.TensorSpec([examples, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(spec, share)


def _build(model, share, examples):
    with model.distribute_strategy.scope():
        if model.run_eagerly:
            _build_by_values(model, share, examples)
        else:
            model._symbolic_build(data_batch=examples)


def _build_by_values(model, share, examples):
    """Builds a model whose calls, losses and metrics may look at values."""

    def whole(rows, spec):
        if not isinstance(spec, tf.TensorSpec):
            return rows
        # As many as on the other workers, whose models note the shape.
        return tf.gather(rows, tf.range(spec.shape[0]) % tf.shape(rows)[0])

    batch = tf.nest.map_structure(whole, share, examples)
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    predicted = model(x, training=False)
    for part in (model._compile_metrics, model._compile_loss):
        if part is not None and not part.built:
            part.build(y, predicted)
    if model.optimizer is not None:
        build_optimizer(model)


def _build_for(model, step, kind):
    first = vars(model).pop("_fastnet_first", None)
    if first is None:
        return
    batch, share, examples = first
    if is_overridden(model, f"{kind}_step"):
        build_by_step(model, _step(model, step, kind), batch)
    else:
        _build(model, share, examples)


# Micro-batches: an optimizer that adds them up has to know how many examples each
# holds, and when an epoch has no more of them. Several replicas are told by the step.
# There Keras would also have XLA compile the step with the collectives in its middle.
@wrap(
    TensorFlowTrainer,
    "_make_function",
    stock=(
        "The step is compiled by XLA with the collectives in it, and knows no "
        "shares of a batch; variables that a program's own step makes are unknown "
        "until it runs on a replica; a model made outside the scope trains on each "
        "worker alone."
    ),
    until="Keras lets a strategy wrap and compile the step.",
)
def _make_step(original, model, step):
    kind: Literal["train", "test"] = "train" if step == model.train_step else "test"
    if kind == "train":
        refuse_no_scope(model, model._distribute_strategy is not None)
    _build_for(model, step, kind)
    with traced_for_strategy(model):
        function = original(model, _step(model, step, kind))
    return _several_steps(model, function)


def _several_steps(model, function):
    steps, strategy = model.steps_per_execution, model.distribute_strategy
    if steps == 1 or model.run_eagerly:
        return function
    if isinstance(strategy, FastnetStrategy):
        if strategy.fit_support.compiles_all:
            # Programs of static shapes are made of each batch as it comes.
            return function
        return strategy.fit_support.data.several_steps(function, steps)
    if counts_alone(model):
        return model.optimizer.several_steps(function, steps)
    return function


def _step(model, step, kind):
    if counts_alone(model) and kind == "train":
        step = model.optimizer.counted_step(step)
    if isinstance(model.distribute_strategy, FastnetStrategy):
        return model_step(model, step, kind)
    return step


@wrap(
    TensorFlowTrainer,
    "make_predict_function",
    stock="The step is compiled by XLA with the collectives in it.",
    until="As for `_make_function`.",
)
def _make_predict_step(original, model, *args, **kwargs):
    with traced_for_strategy(model):
        return original(model, *args, **kwargs)
