"""What LARS does with one variable."""

from dataclasses import asdict, dataclass
from typing import Any


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

    def get_config(self) -> dict[str, Any]:
        """Returns what outlives saving, in a form that JSON can hold.

        That leaves out the path, which Keras may change on loading.
        """
        config = {**asdict(self), "shape": list(self.shape)}
        del config["path"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Treatment":
        """Makes a treatment from what `get_config` returned."""
        return cls(path="", **{**config, "shape": tuple(config["shape"])})
