"""Runs the programs on one device and on two workers; prints docs/programs.md's table.

python -m tests.programs [name ...]
"""

import sys
import tempfile
from collections.abc import Iterable

from tests.distributed.worker_pool import WorkerError, WorkerPool
from tests.programs import PROGRAMS
from tests.programs.comparing import largest_difference


def main(names: Iterable[str]) -> None:
    """Prints one row per program.

    Args:
        names: Names of the programs' modules.
    """
    one, two = WorkerPool(1), WorkerPool(2)
    try:
        print("| Program | Modelled on | Other changes | Difference |")
        print("| --- | --- | --- | --- |")
        for name in names:
            results = []
            try:
                for pool in (one, two):
                    with tempfile.TemporaryDirectory() as folder:
                        results += pool.run("program", name=name, folder=folder)
            except WorkerError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                seen = "fails"
            else:
                alone, *several = (r["results"] for r in results)
                seen, where = max(largest_difference(r, alone) for r in several)
                print(
                    name,
                    where,
                    *(f"{r['seconds']:.1f} s" for r in results),
                    f"{alone}\n{several[0]}",
                    file=sys.stderr,
                    flush=True,
                )
                seen = f"{seen:.0e}"
            if results:
                about = results[0]
                cells = (
                    f"[{name}](../tests/programs/{name}.py)",
                    about["published"],
                    about["changed"] or "nothing",
                    seen,
                )
                print("|", " | ".join(cells), "|", flush=True)
    finally:
        one.stop()
        two.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or PROGRAMS)
