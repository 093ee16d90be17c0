"""A process's place in its cluster."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Place:
    """What who started a process says of its place among the others.

    Attributes:
        source: Who says so, for people.
        rank: This process's number, from 0.
        size: How many there are.
    """

    source: str
    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} from {self.source}"
