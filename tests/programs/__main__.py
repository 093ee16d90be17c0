"""Runs the programs on one device and on two workers; prints what differs.

python -m tests.programs [name ...]
"""

import sys
import tempfile

from tests.distributed.worker_pool import WorkerError, WorkerPool
from tests.programs import PROGRAMS
from tests.programs.comparing import largest_difference


def main() -> None:
    """Prints a line for each program."""
    one, two = WorkerPool(1), WorkerPool(2)
    try:
        for name in sys.argv[1:] or PROGRAMS:
            results = []
            for pool in (one, two):
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        results.append(pool.run("program", name=name, folder=folder))
                    except WorkerError as error:
                        print(f"{name}: {len(results) + 1} FAILED\n{error}", flush=True)
                        break
            if len(results) == 2:
                (alone,), several = results
                seconds = [r[0]["seconds"] for r in results]
                differences = [
                    largest_difference(w["results"], alone["results"]) for w in several
                ]
                print(name, differences, *(f"{s:.1f} s" for s in seconds), flush=True)
                print("   ", alone["results"], "\n   ", several[0]["results"])
    finally:
        one.stop()
        two.stop()


if __name__ == "__main__":
    main()
