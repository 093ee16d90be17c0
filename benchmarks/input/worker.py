"""Times the batches that one process fetches, and writes the seconds to a file.

Seconds of the clock, and of the processor, which leave out what other programs use
meanwhile.
"""

import itertools
import json
import os
import pathlib
import sys
import time

import tensorflow as tf

import keras_fastnet
from benchmarks.input.pipelines import PIPELINES, image_records
from keras_fastnet._keras.tensorflow import worker_dataset

WARM_UP = 6
STEPS = {"images": 50, "records": 50, "ImageRecords": 50, "text": 240}
ALONE = "FILE sharding, not counted"


def ways(dataset: tf.data.Dataset, name: str) -> dict[str, tf.data.Dataset]:
    """Returns the ways in which two workers can be given a pipeline's data."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.FILE
    )
    result = {
        "early shares": dataset,
        # Nothing is known of a function behind `batch`, so every worker maps all.
        "whole batches": dataset.map(lambda *batch: batch),
    }
    if name != "images":
        result["FILE sharding"] = result[ALONE] = dataset.with_options(options)
    return result


def main(folder: pathlib.Path, result: pathlib.Path) -> None:
    strategy = None
    if "TF_CONFIG" in os.environ:
        strategy = keras_fastnet.TorusStrategy()

    def meet() -> None:
        strategy.fit_support.workers.sum(tf.constant(1))

    seconds: dict[str, list[float]] = {}
    for name, pipeline in PIPELINES.items():
        if strategy is None:
            batches = iter(pipeline(folder).repeat())
            seconds[f"{name}, one process"] = timed(batches, name, lambda: None)
            continue
        if name == "ImageRecords":
            own = strategy.fit_support.data.epoch_data(image_records(folder, strategy))
            seconds[f"{name}, own files"] = timed(iter(own), name, meet)
            continue
        for way, data in ways(pipeline(folder).repeat(), name).items():
            distributed = strategy.experimental_distribute_dataset(data)
            if way == ALONE:
                # What each worker reads, without an exchange in every step.
                batches = iter(worker_dataset(distributed))
            else:
                batches = iter(strategy.fit_support.data.epoch_data(distributed))
            seconds[f"{name}, {way}"] = timed(batches, name, meet)
    result.write_text(json.dumps(seconds))


def timed(batches, name: str, meet) -> list[float]:
    """Returns the seconds that a pipeline's steps take, from when all workers begin."""
    for _ in itertools.islice(batches, WARM_UP):
        pass
    meet()
    begun = time.perf_counter(), time.process_time()
    for _ in itertools.islice(batches, STEPS[name]):
        pass
    return [time.perf_counter() - begun[0], time.process_time() - begun[1]]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    # Not the destructors: some wait for tf.data's autotuner.
    os._exit(0)
