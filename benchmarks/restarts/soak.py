"""Kills workers, launchers and links at random, and compares with a quiet training.

    python benchmarks/restarts/soak.py [--restarts 30] [--epochs 150] [--fixed]

Four workers train on two hosts, which are network namespaces of this machine (root
needed). At random times one of `EVENTS` happens to a random worker, launcher or link,
until there were `--restarts` restarts. Without `--fixed`, `fastnet scale` changes the
number of workers on the way: 3, 2, 4, and a launcher that is started again begins with
2. `result-sizes.json` or `result-fixed.json` receives what happened, how long each
restart took, and how far the final weights are from those of a training that nothing
interrupted.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tests.cluster.memory_limit import MemoryLimit
from tests.cluster.network import Network

HERE = pathlib.Path(__file__).parent
# What happens, and how often.
EVENTS = {
    "worker gets SIGKILL": 10,
    "worker gets SIGSTOP": 3,
    "worker is out of memory": 3,
    "launcher gets SIGKILL": 3,
    "link of a host is unplugged": 2,
}
UPDATES_OF_AN_EPOCH, PAUSE = 16, 0.04
SIZES = (3, 2, 4)
PATIENCE = 180.0  # against hangs only
POLL = 0.02


class Training:
    """The launchers of both hosts; one that fails is started again."""

    def __init__(
        self,
        network: Network | None,
        folder: pathlib.Path,
        epochs: int,
        *,
        fixed: bool,
        pause: float,
    ):
        self.network, self.folder, self.fixed = network, folder, fixed
        self.epochs, self.pause = epochs, pause
        folder.mkdir()
        self.scaled: list[dict[str, Any]] = []
        self.started: list[subprocess.Popen] = []
        self.started_again = 0
        self.limits: list[MemoryLimit] = []
        self.killed_by_kernel = 0

    def start(self) -> None:
        """Starts both launchers."""
        self.started = [self._start_on(host) for host in range(2)]

    def start_failed_again(self) -> None:
        """Starts the launchers again that have failed."""
        for host, launcher in enumerate(self.started):
            if launcher.poll():
                self.started_again += 1
                self.started[host] = self._start_on(host)

    def _start_on(self, host: int) -> subprocess.Popen:
        words = [
            *("--nnodes", "2", "--workers", "2", "--min-workers", "1"),
            *("--rendezvous", f"{self.network.address(0)}:29400"),
            *("--max-restarts", "1000", "--threads-per-worker", "1"),
            *("--node-rank", str(host), "--report"),
            str(self.folder / f"report-{host}-{self.started_again}.json"),
        ]
        if self.fixed:
            del words[4:6]
        command = [sys.executable, "-m", "keras_fastnet.cli", "run", *words]
        script = [
            HERE / "train.py",
            self.folder,
            self.epochs,
            int(self.fixed),
            self.pause,
        ]
        with (self.folder / f"log-{host}").open("a") as log:
            return subprocess.Popen(
                [*self.network.wrapper(host), *command, *map(str, script)],
                env={**os.environ, "FASTNET_TOKEN": "a token for this soak test"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """Kills the launchers, and so their workers."""
        for launcher in self.started:
            launcher.kill()
            launcher.wait()
        self.killed_by_kernel += sum(limit.kills() for limit in self.limits)
        for limit in self.limits:
            limit.remove()
        self.limits = []

    def workers(self) -> list[int]:
        """Returns the process ids of the workers."""
        found = []
        for launcher in self.started:
            path = f"/proc/{launcher.pid}/task/{launcher.pid}/children"
            try:
                found += [int(pid) for pid in pathlib.Path(path).read_text().split()]
            except OSError:
                continue
        return found

    def updates(self) -> list[tuple[int, float]]:
        """Returns the number and time of all updates so far."""
        path = self.folder / "updates"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def next_update(self, after: int) -> float | None:
        """Waits for an update; returns its time, or `None` if training has ended.

        Starts launchers again that fail.

        Args:
            after: The number of updates before, repeated ones too.
        """
        polls = 0
        while len(seen := self.updates()) <= after:
            # Counted, so that this process may be suspended together with the others.
            polls += 1
            if polls > PATIENCE / POLL:
                raise TimeoutError(f"no update for {PATIENCE} s: see {self.folder}")
            if {launcher.poll() for launcher in self.started} == {0}:
                return None
            self.start_failed_again()
            time.sleep(POLL)
        return seen[after][1]

    def wait_until_gone(self, workers: set[int]) -> None:
        """Waits until workers have ended, and their launchers have noticed."""
        for _ in range(round(PATIENCE / POLL)):
            if not workers & set(self.workers()):
                return
            time.sleep(POLL)
        raise TimeoutError(f"workers do not end: see {self.folder}")

    def end(self) -> None:
        """Waits for the end of the training."""
        while (seen := len(self.updates())) < 10**9:
            if self.next_update(seen) is None:
                return


def harm(training: Training, event: str, chance: random.Random) -> bool:
    """Lets an event happen; returns whether it could."""
    workers = training.workers()
    if not workers:
        return False
    worker = chance.choice(workers)
    try:
        if event == "worker gets SIGKILL":
            os.kill(worker, signal.SIGKILL)
        elif event == "worker gets SIGSTOP":
            os.kill(worker, signal.SIGSTOP)
        elif event == "worker is out of memory":
            limit = MemoryLimit()
            training.limits.append(limit)
            limit.add(worker)
        elif event == "launcher gets SIGKILL":
            chance.choice(training.started).kill()
        else:
            host = chance.randrange(2)
            training.network.cut(host)
            training.wait_until_gone(set(workers))
            training.network.mend(host)
    except ProcessLookupError:
        return False
    return True


def soak(training: Training, restarts: int, chance: random.Random) -> list[dict]:
    """Trains to the end; returns what happened."""
    happened: list[dict[str, Any]] = []
    sizes = [] if training.fixed else list(SIZES)
    training.start()
    bag: list[str] = []
    # Every event comes as often as its weight says.
    while len(bag) < restarts:
        some = [name for name, times in EVENTS.items() for _ in range(times)]
        chance.shuffle(some)
        bag += some
    while len(happened) < restarts:
        seen = len(training.updates())
        # One time in five while the workers are starting.
        early = chance.random() < 0.2
        if not early and training.next_update(seen) is None:
            raise RuntimeError(f"training ended after {len(happened)} restarts")
        time.sleep(chance.uniform(0.0, 6.0 if early else 3.0))
        if sizes and len(happened) >= restarts * (4 - len(sizes)) // 4:
            scale(training, sizes.pop(0))
        before, began = len(training.updates()), time.time()
        event = bag[len(happened)]
        if not harm(training, event, chance):
            continue
        time.sleep(0.3)
        first = next_of_new_start(training, before, began)
        happened.append(
            {
                "event": event,
                "after_updates": training.updates()[before - 1][0] if before else 0,
                "while_starting": early,
                "seconds_to_next_update": round(first - began, 2),
                "workers": len(training.workers()),
            }
        )
        print(len(happened), happened[-1], flush=True)
    training.end()
    return happened


def next_of_new_start(training: Training, before: int, since: float) -> float:
    """Waits for the first update of workers that were started after an event."""
    old = set(training.workers())
    polls = 0
    while old & set(training.workers()):
        polls += 1
        if polls % (60.0 / POLL) == 0:
            # The event may have hit a process that was ending: no restart follows.
            for pid in old & set(training.workers()):
                os.kill(pid, signal.SIGKILL)
        training.start_failed_again()
        time.sleep(POLL)
    first = training.next_update(len(training.updates()))
    if first is None:
        raise RuntimeError("training ended before its next update")
    return first


def scale(training: Training, workers: int) -> None:
    """Changes the number of workers, and waits until they train."""
    while True:
        before = len(training.updates())
        if training.next_update(before) is None:
            raise RuntimeError("training ended before the number of workers changed")
        words = ["scale", str(workers), "--pid", str(training.started[0].pid)]
        began, old = time.time(), set(training.workers())
        done = subprocess.run(
            [sys.executable, "-m", "keras_fastnet.cli", *words], capture_output=True
        )
        if done.returncode == 0:
            break
        if b"must be another one" in done.stderr:
            return
    while old & set(training.workers()):
        time.sleep(0.02)
    first = training.next_update(len(training.updates()))
    entry = {"event": f"fastnet scale {workers}", "workers": len(training.workers())}
    entry["seconds_to_next_update"] = round((first or began) - began, 2)
    print(entry, flush=True)
    training.scaled.append(entry)


def examined(folder: pathlib.Path) -> dict[str, Any]:
    """Returns whether every epoch has seen each example once."""
    numbers = np.arange(512.0)
    expected = {"number": numbers.mean(), "wave": np.sin(7.0 * numbers).mean()}
    lines = [json.loads(line) for line in (folder / "epochs").read_text().splitlines()]
    wrong = [
        [epoch, seen]
        for epoch, seen in lines
        if any(abs(seen[k] - expected[k]) > 1e-4 * max(1, expected[k]) for k in seen)
    ]
    return {
        "epochs": len({epoch for epoch, _ in lines}),
        "epochs_with_wrong_examples": wrong,
    }


def sizes_of(happened: list[dict]) -> list[int]:
    """Returns the numbers of workers, in their order."""
    sizes = [4]
    for entry in happened:
        if entry["workers"] != sizes[-1]:
            sizes.append(entry["workers"])
    return sizes


def left_over(marker: str) -> list[int]:
    """Returns the processes whose command line has a word."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = pathlib.Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(entry.name))
    return found


def main() -> None:
    """Trains with and without events, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restarts", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=pathlib.Path)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    # So that the launchers are killed below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    began, load = time.time(), os.getloadavg()[0]
    network = Network(2, megabits=1000)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    trainings = [
        Training(
            network, folder / name, options.epochs, fixed=options.fixed, pause=pause
        )
        for name, pause in (("quiet", 0.0), ("harmed", PAUSE))
    ]
    quiet, training = trainings
    try:
        quiet.start()
        quiet.end()
        happened = soak(training, options.restarts, chance)
        time.sleep(1.0)
        remaining = left_over(str(folder))
    finally:
        for started in trainings:
            started.stop()
        network.remove()
    pairs = [np.load(folder / name / "weights.npz") for name in ("quiet", "harmed")]
    differences = [
        float(np.abs(pairs[0][key] - pairs[1][key]).max()) for key in pairs[0].files
    ]
    largest = max(float(np.abs(pairs[0][key]).max()) for key in pairs[0].files)
    updates = training.updates()
    seconds: dict[str, list[float]] = {}
    for entry in happened:
        seconds.setdefault(entry["event"], []).append(entry["seconds_to_next_update"])
    result = {
        "conditions": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load": load,
            "minutes": round((time.time() - began) / 60, 1),
            "seed": options.seed,
        },
        "restarts": len(happened),
        "launchers_started_again": training.started_again,
        "killed_by_kernel_for_memory": training.killed_by_kernel,
        "sizes": sizes_of(happened),
        "updates": options.epochs * UPDATES_OF_AN_EPOCH,
        "updates_made_with_repetitions": len(updates),
        **examined(folder / "harmed"),
        "weights_bit_equal": max(differences) == 0.0,
        "largest_difference_of_weights": max(differences),
        "largest_weight": largest,
        "processes_left": remaining,
        "seconds_to_next_update": {
            name: {
                "times": len(found),
                "median": statistics.median(found),
                "most": max(found),
            }
            for name, found in sorted(seconds.items())
        },
        "scaled": training.scaled,
        "events": happened,
    }
    name = "result-fixed.json" if options.fixed else "result-sizes.json"
    path = options.result or HERE / name
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "events"}, indent=1))


if __name__ == "__main__":
    main()
