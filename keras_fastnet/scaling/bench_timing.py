"""Times functions against each other."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

# Long against what starting and ending a block costs.
_BLOCK_SECONDS = 0.05


def time_in_turn(
    functions: Sequence[Callable[[], Any]],
    finish: Callable[[Any], None],
    agree: Callable[[list[int]], list[int]],
    *,
    warm_up_calls: int,
    rounds: int,
) -> list[list[float]]:
    """Times collective functions in turn, so that noise hits all of them alike.

    Nothing else keeps the ranks in step: none can be ahead of another by more than
    the sum that is being timed.

    Args:
        functions: Functions that all ranks call equally often.
        finish: Waits until the result of a function is there.
        agree: Gives rank 0's integers to all ranks.
        warm_up_calls: Calls of each function that tell how many make a block.
        rounds: How many times each has its turn.

    Returns:
        The seconds of one call in every round, for each function.
    """

    def seconds(function: Callable[[], Any], calls: int) -> float:
        begun = time.perf_counter()
        for _ in range(calls):
            result = None  # What is long is not held twice.
            result = function()
        finish(result)
        return (time.perf_counter() - begun) / calls

    calls = agree(
        [
            math.ceil(_BLOCK_SECONDS / seconds(function, warm_up_calls))
            for function in functions
        ]
    )
    found: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds):
        for i in range(len(functions)):
            # Each is the first of a round at some time.
            place = (i + turn) % len(functions)
            found[place].append(seconds(functions[place], calls[place]))
    return found
