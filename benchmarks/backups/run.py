"""Measures what a backup after every ten updates costs.

    python benchmarks/backups/run.py [--rounds 10] [--folder FOLDER]

ResNet-50 with momentum trains on this machine's processors. In one training, ten
updates with a backup and ten without come in turn. `result.json` receives the medians.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet as fastnet

HERE = pathlib.Path(__file__).parent
EXAMPLES, SIZE, UPDATES, WARM_UP = 8, 64, 10, 2
NEVER = 10**9


class Rounds(keras.callbacks.Callback):
    """Has a backup written at the start of every other ten updates.

    Attributes:
        seconds: Times of ten updates and what is left of their backup then, by whether
            there is one.
        held: Times for which a backup held training.
    """

    def __init__(self, backup: Any):
        super().__init__()
        self.backup = backup
        self.seconds: dict[bool, list[float]] = defaultdict(list)
        self.held: list[float] = []
        self.megabytes = 0.0
        self.begun = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.backup.save_freq = NEVER
        number, rest = divmod(batch + 1, UPDATES)
        if rest:
            return
        self.backup._folder.wait()
        now = time.perf_counter()
        if number > WARM_UP:
            self.seconds[number % 2 == 0].append(now - self.begun)
        for path in self.backup.backup_dir.glob("*.npz"):
            self.megabytes = path.stat().st_size / 1e6
        self.begun = now
        # Called before the callback of the backup.
        self.backup.save_freq = 1 if number % 2 else NEVER

    def note_held(self, batch: int, logs: Any = None) -> None:
        """Called after the callback of the backup."""
        if self.backup.save_freq == 1 and batch + 1 > WARM_UP * UPDATES:
            self.held.append(time.perf_counter() - self.begun)


def main() -> None:
    """Trains, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="of backups")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    keras.utils.set_random_seed(1)
    with fastnet.TorusStrategy().scope():
        model = keras.applications.ResNet50(
            weights=None, input_shape=(SIZE, SIZE, 3), classifier_activation=None
        )
        model.compile(
            keras.optimizers.SGD(1e-3, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    images = np.random.default_rng(0).normal(size=(EXAMPLES, SIZE, SIZE, 3))
    data = (images.astype("float32"), np.arange(EXAMPLES))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        backup = fastnet.callbacks.BackupAndRestore(folder, NEVER)
        rounds = Rounds(backup)
        after = keras.callbacks.LambdaCallback(on_train_batch_end=rounds.note_held)
        model.fit(
            tf.data.Dataset.from_tensors(data).repeat(),
            steps_per_epoch=(WARM_UP + 2 * options.rounds) * UPDATES + 1,
            verbose=0,
            callbacks=[rounds, backup, after],
        )
    without = statistics.median(rounds.seconds[False])
    result = {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": round(load, 1),
        "rounds": options.rounds,
        "megabytes": round(rounds.megabytes),
        "ten_updates_s": round(without, 2),
        "ten_updates_with_backup_s": round(statistics.median(rounds.seconds[True]), 2),
        "held_s": round(statistics.median(rounds.held), 3),
        "all": {str(key): value for key, value in rounds.seconds.items()},
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in result if key != "all"}))


if __name__ == "__main__":
    main()
