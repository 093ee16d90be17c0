"""What a check found."""

from typing import Literal, NamedTuple


class Verdict(NamedTuple):
    """What one check found.

    Attributes:
        invariant: What has to hold.
        result: `"pass"`, `"fail"`, or `"refused"` where keras_fastnet refuses to train
            such a thing, before it could go wrong.
        details: What was seen.
    """

    invariant: str
    result: Literal["pass", "fail", "refused"]
    details: str


class Failed(Exception):
    """An invariant does not hold; says what was seen."""


def require(holds: bool, seen: str) -> None:
    """Raises `Failed` where something does not hold.

    Args:
        holds: Whether it holds.
        seen: What was seen, for people.
    """
    if not holds:
        raise Failed(seen)
