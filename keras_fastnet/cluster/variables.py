"""Values that environment variables state: ranks, and integers."""

from collections.abc import Mapping
from typing import NamedTuple

from keras_fastnet.errors import ClusterError


class ProcessRank(NamedTuple):
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
    environment: Mapping[str, str], name: str, most: int, example: int
) -> int | None:
    """Returns the positive integer that users set a variable to; `None` if not set.

    Args:
        environment: The environment variables.
        name: The variable.
        most: The largest allowed value.
        example: A value for the error message to propose.

    Raises:
        ClusterError: If the variable holds anything else.
    """
    text = environment.get(name)
    # Kubernetes sets `FASTNET_PORT=tcp://…` for a Service with the name `fastnet`.
    if text is None or text.startswith(("tcp://", "udp://")):
        return None
    # `isdigit` accepts digits that `int` rejects.
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= number <= most:
        raise ClusterError(
            f"{name} must be an integer from 1 to {most}. Received: {text!r}. "
            f"Set it on all workers, for example {name}={example}, or unset it."
        )
    return number
