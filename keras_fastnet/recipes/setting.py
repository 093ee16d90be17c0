"""A value of a recipe, and where it comes from."""

from typing import Any, Literal, NamedTuple

Origin = Literal["paper", "rule", "chosen"]


class Setting(NamedTuple):
    """One value of a recipe.

    Attributes:
        value: The value.
        origin: `"paper"`: the value stands there. `"rule"`: a rule that stands there,
            applied to your sizes. `"chosen"`: ours, since the paper does not say.
        source: Where it stands, or why it was chosen.
    """

    value: Any
    origin: Origin
    source: str


def paper(value: Any, source: str) -> Setting:
    """Returns a value that was published.

    Args:
        value: The value.
        source: Where it stands.
    """
    return Setting(value, "paper", source)


def rule(value: Any, source: str) -> Setting:
    """Returns a value that follows from a published rule.

    Args:
        value: The value.
        source: The rule, with its numbers, and where it stands.
    """
    return Setting(value, "rule", source)


def chosen(value: Any, why: str) -> Setting:
    """Returns a value that was chosen here.

    Args:
        value: The value.
        why: The reason.
    """
    return Setting(value, "chosen", why)
