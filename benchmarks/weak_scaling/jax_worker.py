"""One worker of Keras on JAX, the counterpart of `keras_worker.py`.

It runs in an environment that has Keras, JAX and TensorFlow (which Keras on several
processes needs for its input), and not keras_fastnet.
"""

import json
import os
import sys
from importlib.metadata import version

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
from job_result import write
from keras_resnet50 import StepTimes, compiled_resnet50, global_batches, parameters


class FinishedStepTimes(StepTimes):
    """Waits for each step, which JAX computes asynchronously."""

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        super().on_train_batch_end(batch, logs)


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
    model = compiled_resnet50(size)
    times = FinishedStepTimes()
    model.fit(
        global_batches(job["batch_size"], size),
        # The first step only starts the clock.
        steps_per_epoch=1 + job["warm_up"] + job["steps"],
        callbacks=[times],
        verbose=0,
    )
    result = {
        "parameters": parameters(model),
        "versions": {"jax": version("jax")},
    }
    write(job, times.ends, result)


if __name__ == "__main__":
    main()
