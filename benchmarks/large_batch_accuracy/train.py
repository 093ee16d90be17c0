r"""Trains one small ResNet on CIFAR-10 and prints one line of JSON.

python benchmarks/large_batch_accuracy/train.py --data cifar10.npz --method lars \
    --global-batch 8192 --rate 1.6

All runs are the same except for the method, the batch and the rate.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_fastnet as fastnet

# A worker's batch, over which batch normalization computes its statistics.
MICRO_BATCH = 256
MOMENTUM, WEIGHT_DECAY, TRUST_COEFFICIENT = 0.9, 5e-4, 0.02
WARM_UP = 0.15  # of the epochs
HELD_OUT = 5_000  # images of the training set, on which rates are tuned
METHODS = ("sgd", "sgd-warmup", "lars")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="the peak")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tune",
        action="store_true",
        help=f"test on {HELD_OUT:,} training images, which are not trained on",
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="cifar10.npz")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def augmented(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Shifts each image by up to 4 pixels and mirrors half of them.

    NumPy takes an eighth of the time of TensorFlow's gathers of single pixels.
    """
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), "reflect")
    shifted = np.empty_like(images)
    tops, lefts = generator.integers(0, 9, (2, len(images)))
    mirrors = generator.choice([-1, 1], len(images))
    for place, (top, left, mirror) in enumerate(zip(tops, lefts, mirrors, strict=True)):
        crop = padded[place, top : top + 32, left : left + 32]
        shifted[place] = crop[:, ::mirror]
    return shifted


def warm_up(peak: float, updates: int) -> fastnet.callbacks.LearningRateWarmup:
    length = max(2, round(WARM_UP * updates))
    return fastnet.callbacks.LearningRateWarmup(
        peak,
        warmup_updates=length,
        then=fastnet.schedules.Polynomial(updates - length),
        start=peak / length,
    )


def main() -> None:
    args = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    keras.utils.set_random_seed(args.seed)
    with np.load(args.data) as file:
        x, y, test_x, test_y = (file[name] for name in ("x", "y", "test_x", "test_y"))
    if args.tune:
        test_x, test_y = x[-HELD_OUT:], y[-HELD_OUT:]
        x, y = x[:-HELD_OUT], y[:-HELD_OUT]
    mean, deviation = x.mean((0, 1, 2)), x.std((0, 1, 2))

    def scaled(images):
        return (tf.cast(images, tf.float32) - mean) / deviation

    generator = np.random.default_rng(args.seed)

    def batch(places):
        images = tf.numpy_function(
            lambda places: augmented(x[places], generator), [places], tf.uint8
        )
        return scaled(tf.ensure_shape(images, [None, 32, 32, 3])), tf.gather(y, places)

    data = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch(MICRO_BATCH)
    data = data.map(batch).prefetch(2)
    test = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(500)
    test = test.map(lambda x, y: (scaled(x), y))
    updates = args.epochs * -(-len(x) // args.global_batch)
    # Without the trust ratio LARS is SGD with momentum, its decay in the gradient.
    decay = keras.optimizers.schedules.PolynomialDecay(args.rate, updates, 0.0, 2.0)
    without_warm_up = args.method == "sgd"
    optimizer = fastnet.LARS(
        decay if without_warm_up else args.rate,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        trust_coefficient=TRUST_COEFFICIENT,
        exclude_from_adaptation=None if args.method == "lars" else [""],
    )
    steps = args.global_batch // MICRO_BATCH
    # A quarter of the resolution from the start: two cores train this 80 times.
    model = fastnet.models.cifar_resnet(8, first_strides=4, batch_norm_momentum=0.95)
    fastnet.models.zero_gamma(model)
    model.compile(
        fastnet.LargeBatchOptimizer(optimizer, accumulation_steps=steps),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    begun = time.perf_counter()
    callbacks = [] if without_warm_up else [warm_up(args.rate, updates)]
    history = model.fit(
        data, epochs=args.epochs, verbose=0, callbacks=callbacks
    ).history
    seconds = time.perf_counter() - begun
    _, accuracy = model.evaluate(test, verbose=0)
    result = {
        "method": args.method,
        "global_batch": args.global_batch,
        "rate": args.rate,
        "epochs": args.epochs,
        "seed": args.seed,
        "tune": args.tune,
        "updates": int(model.optimizer.iterations.numpy()),
        "accuracy": round(accuracy, 4),
        "training_accuracy": round(history["accuracy"][-1], 4),
        # NaN where training diverged.
        "training_loss": repr(round(history["loss"][-1], 4)),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
