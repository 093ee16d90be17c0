"""Writes a program of keras_fastnet as TensorFlow passes it to XLA.

    python benchmarks/compilers/export.py update FILE --optimizer LARS
    python benchmarks/compilers/export.py gpu FILE --precision mixed_bfloat16
    python benchmarks/compilers/export.py tpu FILE --precision mixed_bfloat16

`update` is an optimizer's update of ResNet-50's weights, `gpu` a whole training step of
ResNet-50 with LARS and micro-batches on one device, `tpu` the part of such a step that
each TPU core runs. The last line printed is a JSON object that describes the program.
"""

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = pathlib.Path(__file__).parents[2]
# The tests' TPU system, and the other benchmark's counts.
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "accelerator")]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_fastnet as fastnet  # noqa: E402

CORES = 4


class Caught(Exception):
    """Ends a training whose first step has been traced."""


def update(args: argparse.Namespace):
    """Exports an optimizer's update of ResNet-50's weights."""
    from update import PASSES, launches, updater

    generator = np.random.default_rng(0)
    shapes = [
        v.shape for v in keras.applications.ResNet50(weights=None).trainable_variables
    ]
    variables, gradients = (
        [tf.Variable(generator.standard_normal(s, dtype="float32")) for s in shapes]
        for _ in range(2)
    )
    variables = [keras.Variable(v) for v in variables]
    optimizer = (
        fastnet.LARS(1.0)
        if args.optimizer == "LARS"
        else keras.optimizers.SGD(0.1, momentum=0.9)
    )
    optimizer.build(variables)
    elements = sum(int(np.prod(shape)) for shape in shapes)
    moved = 4 * elements * PASSES[args.optimizer]
    found = {"tensors": len(shapes), "moved_bytes": moved}
    found["operations"] = launches(updater(optimizer, gradients, False), False)
    return updater(optimizer, gradients, True), [], found


def compiled_model(args: argparse.Namespace) -> keras.Model:
    application = keras.applications.ResNet50(
        weights=None,
        input_shape=(args.size, args.size, 3),
        classifier_activation=None,
    )
    logits = keras.layers.Activation("linear", dtype="float32")(application.output)
    model = keras.Model(application.input, logits)
    fastnet.TorusStrategy()
    model.compile(
        fastnet.LargeBatchOptimizer(fastnet.LARS(1.0), accumulation_steps=2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def gpu(args: argparse.Namespace):
    """Exports a training step on one device."""
    model = compiled_model(args)
    x = tf.zeros([args.batch, args.size, args.size, 3])
    y = tf.zeros([args.batch], tf.int64)
    model.optimizer.build(model.trainable_variables)
    model.evaluate(x[:1], y[:1], verbose=0)  # makes the metrics' variables

    @tf.function(jit_compile=True)
    def step(x, y):
        return model.train_step((x, y))

    return step, [x, y], {"images": args.batch}


def tpu(args: argparse.Namespace):
    """Exports the part of a training step that each core runs."""
    from core_program import compiled_step

    from tests.distributed import tpu_of_cpus

    caught = []

    def catch(*traced, **options):
        caught.append(tpu_of_cpus.Traced.of(*traced, **options))
        raise Caught

    strategy = tpu_of_cpus.strategy(CORES)
    tpu_of_cpus.tpu_strategy.tpu.replicate = catch
    with strategy.scope():
        model = compiled_model(args)
    images = args.batch * CORES
    x = np.zeros((images, args.size, args.size, 3), "float32")
    try:
        model.fit(x, np.zeros(images, "int64"), batch_size=images, verbose=0)
    except Caught:
        step, data = compiled_step(caught[0])
        return step, data, {"images": args.batch, "cores": CORES}
    raise RuntimeError("no step of the training was traced for the cores")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=("update", "gpu", "tpu"))
    parser.add_argument("file", type=pathlib.Path, help="what to write")
    parser.add_argument("--optimizer", choices=("SGD", "LARS"), default="LARS")
    parser.add_argument("--precision", default="float32", help="a dtype policy")
    parser.add_argument("--batch", type=int, default=128, help="images of a device")
    parser.add_argument("--size", type=int, default=224, help="of images, in pixels")
    args = parser.parse_args()
    keras.config.set_dtype_policy(args.precision)
    made = {"update": update, "gpu": gpu, "tpu": tpu}[args.program]
    step, data, found = made(args)
    args.file.write_bytes(step.experimental_get_compiler_ir(*data)("hlo_serialized"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
