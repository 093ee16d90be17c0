"""One worker of a Keras configuration: ResNet-50 through `model.fit`.

`processes.py` starts it with the job as JSON; it writes the times to the job's file.
"""

import json
import os
import sys
import time
from importlib.metadata import version

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from mirrored_with_reduce import MirroredWithReduce


class StepTimes(keras.callbacks.Callback):
    """Milliseconds from the end of each step to the end of the next."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    @property
    def milliseconds(self):
        return [1e3 * t for t in np.diff(self.ends)]


def make_strategy(kind, arguments):
    if kind == "torus":
        import keras_fastnet

        size = arguments.pop("bytes_per_pack", 0)
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=size)
        return keras_fastnet.TorusStrategy(communication_options=options, **arguments)
    if kind == "none":
        return tf.distribute.get_strategy()
    options = tf.distribute.experimental.CommunicationOptions(**arguments)
    cls = {
        "stock": tf.distribute.MultiWorkerMirroredStrategy,
        "mirrored": MirroredWithReduce,
    }[kind]
    return cls(communication_options=options)


def global_batches(examples, size):
    """Yields the same batch forever, so that no time is spent on data."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((examples, size, size, 3), dtype="float32")
    labels = rng.integers(0, 1000, examples)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def main():
    job = json.loads(sys.argv[1])
    # First: a cluster can be formed only before TensorFlow runs an operation.
    strategy = make_strategy(job["strategy"], job["arguments"])
    keras.utils.set_random_seed(0)
    size = job["image_size"]
    with strategy.scope():
        model = keras.applications.ResNet50(
            weights=None, input_shape=(size, size, 3), classifier_activation=None
        )
        model.compile(
            optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    replicas = 1 if job["strategy"] == "none" else job["workers"]
    times = StepTimes()
    callbacks = [times]
    if job["trace"]:
        # The profiler's module is private, so it is imported only if needed.
        from timeline import StepTimeline

        callbacks.append(StepTimeline(job["warm_up"] + 1))
    model.fit(
        global_batches(job["batch_size"] * replicas, size),
        # The first step only starts the clock.
        steps_per_epoch=1 + job["warm_up"] + job["steps"],
        callbacks=callbacks,
        verbose=0,
    )
    result = {
        "step_ms": times.milliseconds[job["warm_up"] :],
        "parameters": sum(int(np.prod(w.shape)) for w in model.trainable_weights),
        "timeline": callbacks[-1].timeline if job["trace"] else None,
        "versions": {name: version(name) for name in ("tensorflow", "keras", "numpy")},
    }
    # A reader sees the whole file or none.
    with open(job["result"] + ".part", "w") as file:
        json.dump(result, file)
    os.replace(job["result"] + ".part", job["result"])


if __name__ == "__main__":
    main()
