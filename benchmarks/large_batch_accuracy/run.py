"""Measures accuracy by batch size: SGD, SGD with warm-up, LARS.

python benchmarks/large_batch_accuracy/run.py --data-dir DIR   # 4 hours on 2 cores
python benchmarks/large_batch_accuracy/run.py --measured       # only the table

DIR holds CIFAR-10 as TFRecords in ImageNet's layout; without it, Keras downloads the
data. For each method, with 256, 8,192 and 32,768, rates are tried on 45,000 training
images and compared on the other 5,000: three, and one more where the best is the lowest
or the highest. The best one then trains on all 50,000 with two seeds that it was not
chosen by, and is tested on the 10,000 test images. With 1,024 and 4,096 the rate is
interpolated between those of 256 and 8,192, and one seed trains. At the end, both
methods with warm-up train four times as long with 256 and 8,192, at the same rates,
with one seed. Each core trains by itself. Runs are kept in runs.jsonl as they end:
started again, only what is missing is run.
"""

import argparse
import json
import math
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

HERE = pathlib.Path(__file__).parent
RUNS = HERE / "runs.jsonl"
# The first batches are those of the published results.
BATCHES = (8_192, 256, 32_768, 1_024, 4_096)
EPOCHS = 40
LONG_EPOCHS = 160
LONG = ((8_192, "lars"), (256, "sgd-warmup"), (8_192, "sgd-warmup"), (256, "lars"))
SEEDS = {256: (1, 2), 1_024: (1,), 4_096: (1,), 8_192: (1, 2), 32_768: (1, 2)}
MOST_RATES = 4
# The first rate of the search.
FIRST_RATE = {
    "sgd": {256: 0.2, 8_192: 0.8, 32_768: 1.6},
    "sgd-warmup": {256: 0.2, 8_192: 1.6, 32_768: 1.6},
    "lars": {256: 0.2, 8_192: 1.6, 32_768: 3.2},
}
_NAMES = {
    "sgd": "SGD, no warm-up",
    "sgd-warmup": "SGD, warm-up",
    "lars": "LARS, warm-up",
}


class NotRun(Exception):
    """A run is missing, and `--measured` allows no new one."""


class Runs:
    """The completed runs, by their settings."""

    def __init__(self, data: pathlib.Path | None) -> None:
        self._data = data
        self._lock = threading.Lock()
        lines = RUNS.read_text().splitlines() if RUNS.exists() else []
        self.ended = {self._key(run): run for run in map(json.loads, lines)}
        self._cores: queue.Queue[int] = queue.Queue()
        for core in os.sched_getaffinity(0):
            self._cores.put(core)

    @staticmethod
    def _key(run: dict) -> tuple:
        names = ("method", "global_batch", "rate", "epochs", "seed", "tune")
        return tuple(run[name] for name in names)

    def of(
        self,
        method: str,
        batch: int,
        rate: float,
        seed: int,
        tune: bool,
        epochs: int = EPOCHS,
    ) -> dict:
        """Returns a run; runs it if it is missing."""
        key = (method, batch, rate, epochs, seed, tune)
        if key not in self.ended:
            if self._data is None:
                raise NotRun(key)
            run = self._train(*key)
            with self._lock:
                self.ended[key] = run
                with RUNS.open("a") as file:
                    file.write(json.dumps(run) + "\n")
            print(json.dumps(run), flush=True)
        return self.ended[key]

    def _train(self, method, batch, rate, epochs, seed, tune) -> dict:
        command = [sys.executable, str(HERE / "train.py"), "--data", str(self._data)]
        command += ["--method", method, "--global-batch", str(batch)]
        command += ["--rate", str(rate), "--epochs", str(epochs), "--seed", str(seed)]
        command += ["--tune"] if tune else []
        core = self._cores.get()
        try:
            ended = subprocess.run(
                ["taskset", "-c", str(core), *command],
                capture_output=True,
                text=True,
            )
        finally:
            self._cores.put(core)
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr}")
        return json.loads(ended.stdout.splitlines()[-1])


def tuned_rate(runs: Runs, method: str, batch: int) -> tuple[float, dict[float, float]]:
    """Returns the best rate, and the accuracy at each rate tried."""
    first = FIRST_RATE[method][batch]
    tried: dict[float, float] = {}

    def attempt(rate: float) -> None:
        tried[rate] = runs.of(method, batch, rate, 0, True)["accuracy"]

    for rate in (first, first / 2, first * 2):
        attempt(rate)
    while True:
        best = max(tried, key=tried.__getitem__)
        if min(tried) < best < max(tried) or len(tried) == MOST_RATES:
            return best, tried
        attempt(best * 2 if best == max(tried) else best / 2)


def rate_between(runs: Runs, method: str, batch: int) -> float:
    """Interpolates the rate, as a power of the batch, between 256 and 8,192."""
    low, high = 256, 8_192
    at_low, at_high = (tuned_rate(runs, method, end)[0] for end in (low, high))
    part = math.log(batch / low) / math.log(high / low)
    return float(f"{at_low * (at_high / at_low) ** part:.3g}")


def cell(runs: Runs, method: str, batch: int, epochs: int) -> dict:
    """Returns the accuracy of one method with one batch size."""
    tried: dict[float, float] = {}
    if batch in FIRST_RATE[method]:
        rate, tried = tuned_rate(runs, method, batch)
    else:
        rate = rate_between(runs, method, batch)
    seeds = SEEDS[batch] if epochs == EPOCHS else (1,)
    final = [runs.of(method, batch, rate, seed, False, epochs) for seed in seeds]
    return {
        "method": method,
        "global_batch": batch,
        "epochs": epochs,
        "updates": final[0]["updates"],
        "rate": rate,
        "tried": dict(sorted(tried.items())),
        "accuracies": [run["accuracy"] for run in final],
        "training_accuracies": [run["training_accuracy"] for run in final],
    }


def prepared(data_dir: str | None) -> pathlib.Path:
    """Returns a file with all images, decoded once for all runs."""
    path = HERE / "cifar10.npz"
    if path.exists():
        return path
    if data_dir is None:
        import keras

        (x, y), (test_x, test_y) = keras.datasets.cifar10.load_data()
        y, test_y = y[:, 0], test_y[:, 0]
    else:
        (x, y), (test_x, test_y) = (
            _read(data_dir, split) for split in ("train", "validation")
        )
    np.savez(path, x=x, y=y, test_x=test_x, test_y=test_y)
    return path


def _read(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    from keras_fastnet.datasets import ImageRecords

    # At their own size and without normalization: whole numbers, as they are stored.
    data = ImageRecords(data_dir, split, classes=10).for_evaluation(
        500, 32, mean=(0, 0, 0), std=(1, 1, 1)
    )
    batches = [(x.astype(np.uint8), y) for x, y in data.as_numpy_iterator()]
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def table(cells: list[dict], epochs: int) -> str:
    """Returns the accuracies with a number of epochs as a Markdown table."""
    found = {
        (entry["method"], entry["global_batch"]): entry
        for entry in cells
        if entry["epochs"] == epochs
    }
    methods = [name for name in _NAMES if (name, 256) in found]
    baseline = statistics.mean(found["sgd-warmup", 256]["accuracies"])
    lines = [
        "| batch | updates | " + " | ".join(_NAMES[m] for m in methods) + " |",
        "| ---: | ---: | " + " | ".join("---" for _ in methods) + " |",
    ]
    for batch in sorted({batch for _, batch in found}):
        texts = []
        for method in methods:
            entry = found[method, batch]
            updates = f"{entry['updates']:,}"
            mean = statistics.mean(entry["accuracies"])
            text = f"{mean:.2%} ({100 * (mean - baseline):+.2f})"
            if len(entry["accuracies"]) > 1:
                low, high = min(entry["accuracies"]), max(entry["accuracies"])
                text += f", {low:.2%} to {high:.2%}"
            texts.append(f"{text}, rate {entry['rate']:g}")
        lines.append(f"| {batch:,} | {updates} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="folder with train-* and validation-*")
    parser.add_argument(
        "--measured",
        action="store_true",
        help="run nothing; an error if a run is missing",
    )
    args = parser.parse_args()
    runs = Runs(None if args.measured else prepared(args.data_dir))
    wanted = [(method, batch, EPOCHS) for batch in BATCHES for method in _NAMES]
    wanted += [(method, batch, LONG_EPOCHS) for batch, method in LONG]

    def attempt(method: str, batch: int, epochs: int) -> dict | None:
        try:
            return cell(runs, method, batch, epochs)
        except NotRun:
            return None

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(lambda one: attempt(*one), wanted))
    cells = [entry for entry in found if entry is not None]
    if len(cells) < len(wanted):
        sys.exit(
            f"{len(wanted) - len(cells)} of {len(wanted)} cells are missing, which "
            f"`python {sys.argv[0]} --data-dir DIR` completes."
        )
    (HERE / "result.json").write_text(json.dumps(cells, indent=1) + "\n")
    for epochs in (EPOCHS, LONG_EPOCHS):
        print(f"{epochs} epochs:\n\n{table(cells, epochs)}\n")


if __name__ == "__main__":
    main()
