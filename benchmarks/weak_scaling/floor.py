"""Measures the least time to sum ResNet-50's gradients over two local ranks.

    python benchmarks/weak_scaling/floor.py

Each of two ranks must receive half of the other's gradients, add its own half to them
and receive the other half of the sum: three times half of the gradients are written.
It measures how fast two processes, each on its own core, copy memory at the same time,
with vectors larger than the caches. Writes `floor.json`.
"""

import json
import multiprocessing
import os
import pathlib
import statistics
import time

import numpy as np
from processes import PARAMETERS, cores

HERE = pathlib.Path(__file__).parent
GRADIENT_BYTES = 4 * PARAMETERS
ROUNDS = 15


def copy_seconds(core, barrier, results):
    """Reports the median time of a copy of the gradients' size."""
    os.sched_setaffinity(0, {core})
    source = np.ones(GRADIENT_BYTES, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(ROUNDS):
        barrier.wait()
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    results.put(statistics.median(seconds))


def main():
    barrier, results = multiprocessing.Barrier(2), multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=copy_seconds, args=(core, barrier, results))
        for core in cores()[:2]
    ]
    for process in processes:
        process.start()
    seconds = max(results.get() for _ in processes)
    for process in processes:
        process.join()
    found = {
        "command": "python benchmarks/weak_scaling/floor.py",
        "gradient_bytes": GRADIENT_BYTES,
        "copied_gb_per_second": GRADIENT_BYTES / seconds / 1e9,
        "floor_ms": {
            "float32": 1e3 * seconds * 1.5,
            "bfloat16": 1e3 * seconds * 0.75,
        },
    }
    (HERE / "floor.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
