"""Writes a worker's result, in any of the environments."""

import itertools
import json
import os
import resource


def write(job: dict, ends: list[float], result: dict) -> None:
    """Writes the result to the job's file; a reader sees the whole file or none.

    It gains the milliseconds of the timed steps, the seconds from the start of the
    process to the end of its first step, and the largest memory that it had.

    Args:
        job: The worker's job.
        ends: The end of each step by `time.monotonic`, the clock of all processes.
        result: The rest of the result.
    """
    times = [1e3 * (end - start) for start, end in itertools.pairwise(ends)]
    result["step_ms"] = times[job["warm_up"] :]
    result["first_step_s"] = ends[0] - job["started_at"]
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open(job["result"] + ".part", "w") as file:
        json.dump(result, file)
    os.replace(job["result"] + ".part", job["result"])
