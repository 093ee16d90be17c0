"""What is asked of an inner optimizer, of either kind that Keras 2 has."""

from typing import Any

from keras_fastnet._keras.keras_api import keras


def apply_update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Has an optimizer make its update.

    Args:
        optimizer: The optimizer.
        gradients: Sums over the replicas.
        variables: Their variables.
    """
    pairs = list(zip(gradients, variables, strict=True))
    # Both kinds know the older word.
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def build(optimizer: Any, variables: list[Any]) -> None:
    """Makes an optimizer's variables, where that has not been done.

    Args:
        optimizer: The optimizer.
        variables: What it will update.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer.

    Args:
        optimizer: The optimizer.
    """
    # Those of `legacy` leave out `iterations` until it is asked for.
    first = [optimizer.iterations]
    rest = optimizer.variables
    rest = rest() if callable(rest) else rest
    return first + [v for v in rest if v is not first[0]]


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those within, from the outside.

    Args:
        optimizer: The optimizer, such as a wrapper of tensorflow-addons.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        inner = vars(optimizer).get("_optimizer")
    return [optimizer] if inner is None else [optimizer, *with_inner(inner)]
