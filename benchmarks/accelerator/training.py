"""Measures images per second and peak memory of ResNet-50 in `model.fit`.

The images are already on the device: reading them is not measured.
"""

import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from device import device, parser, peak_bytes

from keras_fastnet import LARS, LargeBatchOptimizer, TorusStrategy

BATCH, SIZE = 128, 224


class Epochs(keras.callbacks.Callback):
    """Records how long every epoch takes."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.begun)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--precision", default="float32")
    arguments.add_argument("--optimizer", choices=("SGD", "LARS"), required=True)
    arguments.add_argument("--accumulation-steps", type=int, default=1)
    arguments.add_argument("--jit-compile", action="store_true")
    args = arguments.parse_args()
    place = device(args.smoke)
    batch, size, depth = (2, 32, "small") if args.smoke else (BATCH, SIZE, "ResNet-50")
    keras.config.set_dtype_policy(args.precision)
    optimizer = (
        LARS(1.0) if args.optimizer == "LARS" else keras.optimizers.SGD(0.1, 0.9)
    )
    if args.accumulation_steps > 1:
        TorusStrategy()
        optimizer = LargeBatchOptimizer(optimizer, args.accumulation_steps)
    if args.smoke:
        model = keras.Sequential(
            [
                keras.layers.Conv2D(4, 3, strides=4),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dense(1000),
            ]
        )
    else:
        model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=args.jit_compile,
    )
    with tf.device(place):
        images = tf.random.uniform([batch, size, size, 3])
        labels = tf.random.uniform([batch], maxval=1000, dtype=tf.int64)
    steps = args.accumulation_steps * (1 if args.accumulation_steps > 1 else 50)
    steps = min(steps, 4) if args.smoke else steps
    data = tf.data.Dataset.from_tensors((images, labels)).repeat(steps)
    epochs = Epochs()
    model.fit(data, epochs=3 if args.smoke else 5, verbose=0, callbacks=[epochs])
    # The first epoch traces and compiles.
    speed = batch * steps / statistics.median(epochs.seconds[1:])
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    result = {
        "part": "training",
        "model": depth,
        "optimizer": args.optimizer,
        "precision": args.precision,
        "jit_compile": args.jit_compile,
        "batch": batch,
        "global_batch": batch * args.accumulation_steps,
        "images_a_second": speed,
        "tensor_float_32": tf32,
        "peak_bytes": peak_bytes(place),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
