"""Times functions against each other."""

import math
import time
from collections.abc import Callable, Sequence

# Long against what starting and ending a block costs.
_BLOCK_SECONDS = 0.05
_WARM_UP_CALLS = 3


def time_in_turn(
    functions: Sequence[Callable[[], None]],
    agree: Callable[[list[int]], list[int]],
    rounds: int,
) -> list[list[float]]:
    """Times functions in turn, so that noise hits all of them alike.

    Ranks keep in step by the sums that they time: none can run ahead of another.

    Args:
        functions: Functions that all ranks call equally often. One returns when what
            it did may be counted as done, or as good as; see `done` of the callers.
        agree: Gives rank 0's integers to all ranks.
        rounds: How many times each has its turn.

    Returns:
        The seconds of one call in every round, for each function.
    """
    calls = agree([_calls_in_block(function) for function in functions])
    found: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds):
        for i in range(len(functions)):
            # Nobody follows the same neighbour every time at the same place.
            place = (i + turn) % len(functions)
            found[place].append(_seconds(functions[place], calls[place]))
    return found


def _calls_in_block(function: Callable[[], None]) -> int:
    seconds = _seconds(function, 1)
    if seconds < _BLOCK_SECONDS:
        seconds = _seconds(function, _WARM_UP_CALLS)
    return max(1, math.ceil(_BLOCK_SECONDS / seconds))


def _seconds(function: Callable[[], None], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begun) / calls
