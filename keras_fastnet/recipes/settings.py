"""Values of a recipe, each with its source."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Origin = Literal["paper", "rule", "chosen"]


class Setting(NamedTuple):
    """One value of a recipe, and its source.

    Attributes:
        value: The value.
        origin: `"paper"`: the paper states the value. `"rule"`: a rule of the paper,
            applied to your sizes. `"chosen"`: chosen by keras_fastnet, since the paper
            does not state it.
        source: Where the paper states it, or why it was chosen.
    """

    value: Any
    origin: Origin
    source: str


def paper(value: Any, source: str) -> Setting:
    """Returns a published value.

    Args:
        value: The value.
        source: Where the paper states it.
    """
    return Setting(value, "paper", source)


def rule(value: Any, source: str) -> Setting:
    """Returns a value that follows from a published rule.

    Args:
        value: The value.
        source: The rule, with its numbers, and where the paper states it.
    """
    return Setting(value, "rule", source)


def chosen(value: Any, why: str) -> Setting:
    """Returns a value chosen by keras_fastnet.

    Args:
        value: The value.
        why: The reason.
    """
    return Setting(value, "chosen", why)


def nearest_batch(batch: int, known: Iterable[int]) -> int:
    """Returns the known batch with the ratio closest to 1.

    Args:
        batch: The global batch.
        known: Batches with published values.
    """
    return min(known, key=lambda other: max(other / batch, batch / other))
