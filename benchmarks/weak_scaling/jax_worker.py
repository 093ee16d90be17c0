"""One worker of Keras on JAX, the counterpart of `keras_worker.py`.

It runs in an environment that has Keras, JAX and TensorFlow (which Keras on several
processes needs for its input), and not keras_fastnet.
"""

import json
import os
import sys
import time
from importlib.metadata import version

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import tensorflow as tf


class StepTimes(keras.callbacks.Callback):
    """Milliseconds from the end of each step to the end of the next."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        # JAX computes asynchronously; the loss needs the whole step.
        float(logs["loss"])
        self.ends.append(time.perf_counter())

    @property
    def milliseconds(self):
        return [1e3 * t for t in np.diff(self.ends)]


def global_batches(examples, size):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((examples, size, size, 3), dtype="float32")
    labels = rng.integers(0, 1000, examples).astype("int32")
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def main():
    job = json.loads(sys.argv[1])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    several = job["strategy"] != "none" and job["workers"] > 1
    if several:
        keras.distribution.initialize(job["addresses"], job["workers"], job["rank"])
        # The dataset has each process's own batches.
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(0)
    size = job["image_size"]
    model = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classifier_activation=None
    )
    model.compile(
        optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    times = StepTimes()
    model.fit(
        global_batches(job["batch_size"], size),
        # The first step only starts the clock.
        steps_per_epoch=1 + job["warm_up"] + job["steps"],
        callbacks=[times],
        verbose=0,
    )
    result = {
        "step_ms": times.milliseconds[job["warm_up"] :],
        "parameters": sum(int(np.prod(w.shape)) for w in model.trainable_weights),
        "versions": {"jax": version("jax")},
    }
    # A reader sees the whole file or none.
    with open(job["result"] + ".part", "w") as file:
        json.dump(result, file)
    os.replace(job["result"] + ".part", job["result"])


if __name__ == "__main__":
    main()
