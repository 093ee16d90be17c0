"""Writes a worker's result, in any of the environments."""

import json
import os


def write(job: dict, result: dict) -> None:
    """Writes the result to the job's file; a reader sees the whole file or none."""
    with open(job["result"] + ".part", "w") as file:
        json.dump(result, file)
    os.replace(job["result"] + ".part", job["result"])
