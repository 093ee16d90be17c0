"""Models in the scope of a strategy: `compile`, and objects made outside the scope."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras

from keras_fastnet._keras.keras3 import values
from keras_fastnet._keras.keras3.trainers import BaseTrainer
from keras_fastnet._keras.protocols import FastnetStrategy
from keras_fastnet._keras.scopes import refuse_compiled_in_scope
from keras_fastnet._keras.wrapping import wrap

_HAVE_VARIABLES = (keras.Optimizer, keras.Metric, keras.Loss)


# Guides for one device make the optimizer before the model, and compile again to
# fine-tune.
@wrap(
    BaseTrainer,
    "compile",
    stock=(
        "Optimizers and metrics that were made outside the scope have variables "
        "that are not the strategy's."
    ),
    until="Keras moves them into the scope, or raises an error.",
)
def _compile_in_scope(original, model, *args, **kwargs):
    strategy: Any = getattr(model, "_distribute_strategy", None)
    if not isinstance(strategy, FastnetStrategy):
        refuse_compiled_in_scope(model, strategy)
        return original(model, *args, **kwargs)
    with model.distribute_strategy.scope():
        given = inspect.signature(original).bind(model, *args, **kwargs).arguments
        move_into_scope(strategy, list(given.values()))
        return original(model, *args, **kwargs)


def move_own_into_scope(model: keras.Model) -> None:
    """Moves a model's optimizers and metrics into the scope that it was made in.

    A `compile` of a subclass, and assignments after it, make them anywhere. It looks
    once after each `compile`: attributes may be as large as a replay buffer.

    Args:
        model: A compiled model of a keras_fastnet strategy.
    """
    if model.train_function is not None or model.test_function is not None:
        return
    strategy = model._distribute_strategy
    with strategy.scope():
        move_into_scope(strategy, [vars(model), model.metrics])


def move_into_scope(strategy: Any, things: Any) -> None:
    """Moves optimizers, metrics and losses that were made elsewhere into a scope.

    The objects stay the same: each of their Keras variables gets a variable of the
    strategy instead of its own, with its value. So callbacks, schedules and the
    caller's own references go on to work.

    Args:
        strategy: The strategy, whose scope is entered.
        things: Lists and dictionaries with them in, among other things.

    Raises:
        ValueError: An optimizer holds the state of variables outside of the scope.
    """
    found = list(_with_variables(things, set()))
    optimizers = [thing for thing in found if isinstance(thing, keras.Optimizer)]
    for optimizer in optimizers:
        _refuse_foreign_state(strategy, optimizer)
    for thing in found:
        for variable in _variables(thing):
            if not _is_in_scope(strategy, variable):
                variable._initialize(variable._value.numpy())
    for optimizer in optimizers:
        optimizer._distribution_strategy = strategy


def _with_variables(things: Any, seen: set[int]) -> Iterator[Any]:
    """Yields each object that may have variables, and those within it, once."""
    containers = (dict, list, tuple)
    if not isinstance(things, (*containers, *_HAVE_VARIABLES)) or id(things) in seen:
        return
    seen.add(id(things))
    if isinstance(things, _HAVE_VARIABLES):
        yield things
        # Optimizers wrap others, losses may have metrics.
        things = vars(things)
    within = things.values() if isinstance(things, dict) else things
    for thing in list(within):
        yield from _with_variables(thing, seen)


def _variables(thing: Any) -> list[keras.Variable]:
    """Returns the variables that have a value; losses do not list theirs."""
    own = [*getattr(thing, "variables", []), *vars(thing).values()]
    return [
        variable
        for variable in own
        if isinstance(variable, keras.Variable) and variable._value is not None
    ]


def _is_in_scope(strategy: Any, variable: Any) -> bool:
    variable = getattr(variable, "_value", variable)
    return strategy.extended.variable_created_in_scope(variable)


def _refuse_foreign_state(strategy: Any, optimizer: keras.Optimizer) -> None:
    foreign = [
        variable
        for variable in optimizer._trainable_variables
        if not _is_in_scope(strategy, variable)
    ]
    if foreign:
        kind = type(optimizer).__name__
        raise ValueError(
            "An optimizer must be new, or made within the model's `strategy.scope()`. "
            f"Received: the {kind} {optimizer.name!r} with "
            f"{int(values.to_numpy(optimizer.iterations))} updates and the state of "
            f"{len(foreign)} variables outside of the scope. Pass a new one: "
            f"`{kind}.from_config(optimizer.get_config())`."
        )
