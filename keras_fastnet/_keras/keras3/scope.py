"""Optimizers and metrics that were made outside of the scope of a strategy."""

from collections.abc import Iterator
from typing import Any

import keras

from keras_fastnet._keras.keras3 import values

_HAVE_VARIABLES = (keras.Optimizer, keras.Metric, keras.Loss)


def move_own_into_scope(model: keras.Model) -> None:
    """Moves a model's optimizers and metrics into the scope that it was made in.

    Guides for one device make the optimizer before the model, and compile outside of
    the scope. It looks once after each `compile`: attributes may be as large as a
    replay buffer.
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
