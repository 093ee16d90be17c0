"""Predicts the time of NCCL's all-reduce from its latency and its bandwidth."""

import math

PIPELINING = 1.2
"""The median over six published systems; see `benchmarks/plan`."""


def nccl_all_reduce_seconds(
    latency: float, bandwidth: float, nbytes: float, pipelining: float = PIPELINING
) -> float:
    """Returns the predicted time of NCCL's all-reduce of one vector.

    The time is that of the shortest vector, plus that of the bytes of a long one, plus
    `pipelining` times the geometric mean of both: NCCL cuts a vector into chunks, and
    chunks of any size cost either starts or waiting for the first one to arrive. With
    the best size of chunk, a pipeline has this form, and a factor of 2.

    Args:
        latency: Seconds of an all-reduce of a few bytes.
        bandwidth: Bytes of the vector per second of a long all-reduce: `algbw` of
            nccl-tests.
        nbytes: Bytes of each rank's vector.
        pipelining: The factor. Defaults to `1.2`.
    """
    moving = nbytes / bandwidth
    return latency + pipelining * math.sqrt(latency * moving) + moving
