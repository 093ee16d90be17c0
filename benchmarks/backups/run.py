"""Measures what a backup after every ten updates costs.

    python benchmarks/backups/run.py

Two workers of this machine train ResNet-50 over MPI, with 8 images a worker in each of
`--micro-batches`. Within one training, these come in turn: ten updates without a
backup, with one that training waits for, and with one in the background, for the rest
of which the tenth update waits. The medians go to `result.json`.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).parent
WAYS = ("none", "foreground", "background")


def measured(**options: Any) -> dict[str, Any]:
    """Returns the times of one training."""
    launch = ["-m", "keras_fastnet.cli", "run", "--workers", "2", "--transport", "mpi"]
    done = subprocess.run(
        [sys.executable, *launch, HERE / "worker.py", json.dumps(options)],
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if "RESULT" in line]
    if len(found) != 1:
        raise RuntimeError(f"There is no result:\n{done.stderr[-2000:]}")
    return json.loads(found[0].split("RESULT", 1)[1])


def main() -> None:
    """Runs all trainings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--micro-batches", nargs="+", type=int, default=(1, 4))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="of backups")
    parser.add_argument("--result", default=HERE / "result.json", type=pathlib.Path)
    options = parser.parse_args()
    ways = options.ways
    load = os.getloadavg()[0]
    table = []
    for micro_batches in options.micro_batches:
        run = measured(
            micro_batches=micro_batches,
            ways=ways,
            rounds=options.rounds if micro_batches == 1 else options.rounds // 2,
            folder=options.folder,
        )
        medians = {way: statistics.median(run["seconds"][way]) for way in ways}
        # Of neighbours before and after, so that the machine's moods hit all.
        without = [sum(two) / 2 for two in itertools.pairwise(run["seconds"]["none"])]
        costs = {
            way: statistics.median(
                one / other - 1
                for one, other in zip(run["seconds"][way], without, strict=True)
            )
            for way in ways[1:]
        }
        held = {way: statistics.median(run["held"].get(way, [0.0])) for way in ways[1:]}
        processor = {way: statistics.median(run["processor"][way]) for way in ways}
        row = {
            "micro_batches": micro_batches,
            "ten_updates_s": medians,
            "processor_s": processor,
            "held_s": held,
            "cost": costs,
            **run,
        }
        table.append(row)
        print(
            f"{micro_batches} x 8 images a worker: ten updates "
            f"{medians['none']:.2f} s; "
            + "; ".join(
                f"{way} {cost:.2%}, held {held[way]:.3f} s, processor "
                f"{processor[way] - processor['none']:+.2f} s"
                for way, cost in costs.items()
            ),
            flush=True,
        )
    conditions = {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": load,
        "rounds": options.rounds,
    }
    result = {"conditions": conditions, "table": table}
    options.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
