"""Values that environment variables state: ranks, and integers."""

import dataclasses
from collections.abc import Mapping

from keras_fastnet.errors import ClusterError


@dataclasses.dataclass(frozen=True)
class ProcessRank:
    """The rank and world size of this process, as one source states them.

    Attributes:
        source: Name of the source, for messages.
        rank: This process's number, from 0.
        size: The number of processes.
    """

    source: str
    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} from {self.source}"


def integer_variable(
    environment: Mapping[str, str], name: str, least: int, most: int, example: int
) -> int | None:
    """Returns the integer in a variable that users set; `None` if it is not set.

    Args:
        environment: The environment variables.
        name: The variable.
        least: The smallest allowed value.
        most: The largest allowed value.
        example: A value for the error message to propose.

    Raises:
        ClusterError: If the variable holds anything else.
    """
    text = environment.get(name)
    if text is None:
        return None
    # `isdigit` accepts digits that `int` rejects.
    number = int(text) if text.isdecimal() and len(text) < 10 else -1
    if not least <= number <= most:
        raise ClusterError(
            f"{name} must be an integer from {least} to {most}. Received: {text!r}. "
            f"Set it on all workers, for example {name}={example}, or unset it."
        )
    return number
