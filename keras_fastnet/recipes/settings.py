"""Values of a recipe, each with its source."""

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

    def adapted(self, value: Any, source: str | None = None) -> "Setting":
        """Returns the setting with a value that was computed from it for other sizes.

        Args:
            value: The value for the sizes of a training.
            source: How it was computed. Defaults to `None`: the same source.
        """
        origin: Origin = "rule" if self.origin == "paper" else self.origin
        return Setting(value, origin, self.source if source is None else source)


def paper(value: Any, source: str) -> Setting:
    """Returns a value that the paper states in `source`."""
    return Setting(value, "paper", source)


def chosen(value: Any, why: str) -> Setting:
    """Returns a value that keras_fastnet chose, and the reason."""
    return Setting(value, "chosen", why)
