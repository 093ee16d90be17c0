"""One worker of the benchmark: writes its peak memory."""

import argparse
import pathlib
import resource

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plain", type=int, default=0, help="1: LARS alone")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    strategy = keras_fastnet.TorusStrategy()
    accumulation = arguments.global_batch // arguments.micro_batch
    with strategy.scope():
        model = keras.applications.ResNet50(
            weights=None, input_shape=(32, 32, 3), classifier_activation=None
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras_fastnet.LARS(1e-3)
        if not arguments.plain:
            optimizer = keras_fastnet.LargeBatchOptimizer(optimizer, accumulation)
        model.compile(optimizer=optimizer, loss=loss)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((arguments.micro_batch, 32, 32, 3), dtype="float32")
    labels = rng.integers(0, 1000, arguments.micro_batch)
    # The same micro-batch again and again: a real pipeline holds a few at a time.
    model.fit(
        tf.data.Dataset.from_tensors((images, labels)).repeat(),
        steps_per_epoch=arguments.steps,
        shuffle=False,
        verbose=0,
    )
    updates = int(optimizer.iterations.numpy())
    if updates != arguments.steps // accumulation:
        raise RuntimeError(f"There were {updates} updates.")
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (arguments.folder / str(strategy.rank)).write_text(str(kilobytes))


if __name__ == "__main__":
    main()
