"""Times training steps of ResNet-50 with and without `GradientNoise`.

    python benchmarks/gradient_noise/run.py

One process, 64x64 images, micro-batches of 8 and 32 images, 4 in an update. The same
model trains in turn with and without the record of the noise.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_fastnet as fastnet
from keras_fastnet.launcher.worker_environment import processor_name

HERE = pathlib.Path(__file__).parent
ROUNDS, UPDATES, MICRO_BATCHES = 7, 5, 4


class Clock(keras.callbacks.Callback):
    """Measures the seconds of a `fit` after its first update."""

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == MICRO_BATCHES:
            self.begun = time.perf_counter()
        self.ended = time.perf_counter()


def timed_fit(model, images, labels, watched):
    """Returns the milliseconds of a micro-batch."""
    clock = Clock()
    callbacks = [clock, *([fastnet.callbacks.GradientNoise()] if watched else [])]
    model.fit(
        images,
        labels,
        batch_size=len(images) // (MICRO_BATCHES * (UPDATES + 1)),
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return 1e3 * (clock.ended - clock.begun) / (MICRO_BATCHES * UPDATES)


def measured(micro_batch):
    """Returns the figures at a micro-batch."""
    count = micro_batch * MICRO_BATCHES * (UPDATES + 1)
    generator = np.random.default_rng(0)
    images = generator.random((count, 64, 64, 3), dtype="float32")
    labels = generator.integers(0, 10, count)
    model = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10
    )
    optimizer = fastnet.LargeBatchOptimizer(
        fastnet.LARS(0.1), accumulation_steps=MICRO_BATCHES
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    timed_fit(model, images, labels, watched=False)
    rounds = []
    for number in range(ROUNDS):
        # In turn first and second.
        order = (False, True) if number % 2 else (True, False)
        rounds.append({w: timed_fit(model, images, labels, w) for w in order})
    return {
        "micro_batch": micro_batch,
        "without_ms": round(statistics.median(r[False] for r in rounds), 1),
        "with_ms": round(statistics.median(r[True] for r in rounds), 1),
        "ratios": sorted(round(r[True] / r[False], 3) for r in rounds),
        "ratio": round(statistics.median(r[True] / r[False] for r in rounds), 3),
    }


def main():
    fastnet.TorusStrategy()
    results = [measured(micro_batch) for micro_batch in (8, 32)]
    conditions = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": "python benchmarks/gradient_noise/run.py",
        "processor": f"{processor_name()}, {os.cpu_count()} cores visible",
        "rounds": ROUNDS,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tensorflow", "keras", "keras-fastnet")
        },
    }
    text = json.dumps({"conditions": conditions, "results": results}, indent=2)
    (HERE / "result.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
