"""Writes a worker's result, in any of the environments."""

import json
import os
import resource


def write(job: dict, result: dict) -> None:
    """Writes the result to the job's file; a reader sees the whole file or none.

    It gains the largest memory that the process had, and the time from its start to the
    end of its first step.
    """
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result["peak_mib"] = peak_kib / 1024
    result["first_step_s"] = result.pop("first_step_at") - job["started_at"]
    with open(job["result"] + ".part", "w") as file:
        json.dump(result, file)
    os.replace(job["result"] + ".part", job["result"])
