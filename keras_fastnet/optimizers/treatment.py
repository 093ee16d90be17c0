"""What LARS does with one variable."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Treatment:
    """What LARS does with one variable, and why.

    Attributes:
        path: The variable's path in its model.
        shape: Its shape.
        decayed: Whether weight decay acts on it.
        adapted: Whether its rate is multiplied by the trust ratio.
        reason: What excludes it, in words; empty where nothing does.
    """

    path: str
    shape: tuple[int, ...]
    decayed: bool
    adapted: bool
    reason: str
