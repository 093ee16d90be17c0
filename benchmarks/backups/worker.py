"""Trains ResNet-50 with backups and times ten updates; started by `run.py`."""

import json
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet as fastnet

EXAMPLES, SIZE, UPDATES = 8, 64, 10
WARM_UP = 2
NEVER = 10**9


class Cycles(keras.callbacks.Callback):
    """Has a backup written at the start of ten updates, in each way in turn.

    Attributes:
        seconds: The times of ten updates with their backup, by the way.
        held: How long training was held, by the way.
        processor: Processor time of this worker in ten updates, by the way.
    """

    def __init__(self, backup: Any, ways: list[str], micro_batches: int) -> None:
        super().__init__()
        self.backup = backup
        self.ways = ways
        self.batches = UPDATES * micro_batches
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.held: dict[str, list[float]] = defaultdict(list)
        self.processor: dict[str, list[float]] = defaultdict(list)
        self.way = ""
        self.begun = self.used = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.backup.save_freq = NEVER
        cycle, rest = divmod(batch + 1, self.batches)
        if rest:
            return
        # What is left to do counts, and does not fall on the next way.
        self.backup._writer.wait()
        now, used = time.perf_counter(), time.process_time()
        if cycle > WARM_UP:
            self.seconds[self.way].append(now - self.begun)
            self.processor[self.way].append(used - self.used)
        self.begun, self.used = now, used
        self.way = self.ways[(cycle - WARM_UP) % len(self.ways)]
        self.backup.save_on_background = self.way == "background"
        backs_up = self.way in ("foreground", "background")
        self.backup.save_freq = 1 if backs_up else NEVER

    def note_held(self) -> None:
        """Called when the backup's callback has returned."""
        if self.backup.save_freq == 1:
            self.held[self.way].append(time.perf_counter() - self.begun)


def size_of(model: Any) -> int:
    """Returns the bytes of a model's state."""
    return sum(v.numpy().nbytes for v in model.variables) + sum(
        v.numpy().nbytes for v in model.optimizer.variables
    )


def main() -> None:
    """Trains, and prints the times on the chief."""
    options = json.loads(sys.argv[1])
    micro_batches = options["micro_batches"]
    strategy = fastnet.TorusStrategy(transport="mpi")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.applications.ResNet50(
            weights=None, input_shape=(SIZE, SIZE, 3), classifier_activation=None
        )
        sgd = keras.optimizers.SGD(1e-3, momentum=0.9)
        model.compile(
            fastnet.LargeBatchOptimizer(sgd, micro_batches),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    batch = EXAMPLES * strategy.num_workers
    generator = np.random.default_rng(0)
    images = generator.normal(size=(batch, SIZE, SIZE, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((images, np.arange(batch))).repeat()
    # One more, without a backup, as the first.
    cycles = WARM_UP + len(options["ways"]) * options["rounds"] + 1
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        backup = fastnet.callbacks.BackupAndRestore(folder, NEVER)
        timing = Cycles(backup, options["ways"], micro_batches)
        after = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: timing.note_held()
        )
        model.fit(
            data,
            steps_per_epoch=cycles * timing.batches,
            verbose=0,
            callbacks=[timing, backup, after],
        )
    if strategy.rank == 0:
        result = {
            "seconds": timing.seconds,
            "held": timing.held,
            "processor": timing.processor,
            "megabytes": size_of(model) / 1e6,
        }
        print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
