"""What a transport offers: collectives over a group of ranks."""

from collections.abc import Callable
from typing import Any, Protocol


class Group(Protocol):
    """Some ranks that reduce together, as one of them sees it.

    Vectors have one axis and the same length and dtype on all ranks of the group.
    All ranks call the same operations in the same order. An operation may overwrite
    the vectors that it is given.

    Attributes:
        size: Number of ranks.
    """

    size: int

    def reduce_scatter(self, vector: Any) -> Any:
        """Sums vectors and deals out the sum.

        Args:
            vector: This rank's, of a length that `size` divides.

        Returns:
            The chunk of the sum that belongs to this rank's place.
        """

    def all_gather(self, chunk: Any, vector: Any) -> Any:
        """Undoes the dealing out of `reduce_scatter`.

        Args:
            chunk: This rank's.
            vector: What this rank gave to `reduce_scatter`.

        Returns:
            The chunks of all ranks, by place.
        """

    def start_all_reduce(self, vector: Any) -> Callable[[], Any]:
        """Begins to sum vectors, with as few bytes as can be.

        One more may be begun before the sum is waited for.

        Args:
            vector: This rank's, of a length that `size` divides.

        Returns:
            A function that waits for the sum, bit-equal on all ranks, and returns it.
        """

    def gather_and_sum(self, vector: Any) -> Any:
        """Sums vectors, with as few messages as can be.

        Args:
            vector: This rank's.

        Returns:
            The sum, bit-equal on all ranks.
        """
