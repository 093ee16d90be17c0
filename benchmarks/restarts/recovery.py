"""Times from a failure, or from `fastnet scale`, to the next update.

    python benchmarks/restarts/recovery.py [--repeats 5]

Two workers of this machine train a small network. `result-recovery.json` receives, for
each event, the seconds until the new workers are started and until their first update.
"""

import argparse
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.restarts.soak import HERE, PATIENCE, Training

KILLED, SUSPENDED = "a worker is killed (SIGKILL)", "a worker is suspended (SIGSTOP)"
SIGNALS = {KILLED: signal.SIGKILL, SUSPENDED: signal.SIGSTOP}


class LocalTraining(Training):
    """One launcher, with two workers."""

    def start(self) -> None:
        """Starts the launcher."""
        self.started = [self._start_on(0)]

    def _start_on(self, host: int) -> subprocess.Popen:
        words = ["--workers", "2", "--min-workers", "1", "--max-restarts", "1000"]
        script = [HERE / "train.py", self.folder, self.epochs, 0, self.pause]
        command = [sys.executable, "-m", "keras_fastnet.cli", "run", *words]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                [*command, *map(str, script)], stdout=log, stderr=subprocess.STDOUT
            )


def measured(training: Training, event: str) -> tuple[float, float]:
    """Lets an event happen; returns the seconds to the next start and update."""
    training.next_update(len(training.updates()))
    # Between two backups.
    time.sleep(1.0)
    old, began = set(training.workers()), time.time()
    if event in SIGNALS:
        os.kill(max(old), SIGNALS[event])
    else:
        words = ["scale", event.split()[-1], "--pid", str(training.started[0].pid)]
        subprocess.run([sys.executable, "-m", "keras_fastnet.cli", *words], check=True)
    limit = time.monotonic() + PATIENCE
    while not (new := set(training.workers())) or old & new:
        if time.monotonic() > limit:
            raise TimeoutError(f"no new start: see {training.folder}")
        time.sleep(0.005)
    started = time.time()
    first = training.next_update(len(training.updates()))
    if first is None:
        raise RuntimeError("training has ended: use more epochs")
    return started - began, first - began


def median(seconds: Iterable[float]) -> float:
    """Returns the median, rounded to hundredths."""
    return round(statistics.median(seconds), 2)


def main() -> None:
    """Measures all events, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    load = os.getloadavg()[0]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="recovery-")) / "training"
    training = LocalTraining(None, folder, 500, fixed=False, pause=0.1)
    plan = [KILLED, "fastnet scale 1", "fastnet scale 2"] * repeats
    plan += [SUSPENDED] * min(2, repeats)
    seconds: dict[str, list[tuple[float, float]]] = {}
    try:
        training.start()
        for event in plan:
            seconds.setdefault(event, []).append(measured(training, event))
            print(event, seconds[event][-1], flush=True)
    finally:
        training.stop()
    result: dict[str, Any] = {
        "conditions": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load": load,
        },
        "events": {
            event: {
                "times": len(found),
                "median_seconds_to_new_workers": median(s for s, _ in found),
                "median_seconds_to_next_update": median(u for _, u in found),
                "all": [[round(s, 2), round(u, 2)] for s, u in found],
            }
            for event, found in seconds.items()
        },
    }
    path = HERE / "result-recovery.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
