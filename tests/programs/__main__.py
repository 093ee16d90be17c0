"""Runs the programs on one device and on two workers; prints docs/programs.md's table.

python -m tests.programs [name ...]
"""

import sys
import tempfile

from tests.distributed.worker_pool import WorkerPool
from tests.programs import PROGRAMS
from tests.programs.comparing import largest_difference

print("| Program | Modelled on | Other changes | Difference |")
print("| --- | --- | --- | --- |")
pools = WorkerPool(1), WorkerPool(2)
try:
    for name in sys.argv[1:] or PROGRAMS:
        found = []
        for pool in pools:
            with tempfile.TemporaryDirectory() as folder:
                found += pool.run("program", name=name, folder=folder)
        alone, *several = found
        difference, _ = max(
            largest_difference(each["results"], alone["results"]) for each in several
        )
        link = f"[{name}](../tests/programs/{name}.py)"
        changed = alone["changed"] or "nothing"
        cells = link, alone["published"], changed, f"{difference:.0e}"
        print("|", " | ".join(cells), "|", flush=True)
finally:
    for pool in pools:
        pool.stop()
