"""Trains a ResNet with LARS, micro-batches and growth, compiled by XLA and not.

In a process of its own, since XLA and TensorFlow read their options once:

    XLA_FLAGS="--xla_dump_to=DIR ..." python -m tests.xla_training DIR

Prints a JSON object with the outcome of every case.
"""

import json
import pathlib
import re
import sys

import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)

import keras  # noqa: E402

import keras_fastnet as fastnet  # noqa: E402
from tests.distributed.jobs import scope  # noqa: E402

DUMPS = pathlib.Path(sys.argv[1])
GROWTH = {0: 16, 1: 32, 2: 48}


def compilations() -> int:
    """Returns how many programs XLA has compiled so far."""
    return len(list(DUMPS.glob("module_*.before_optimizations.txt")))


def transfers_to_the_host() -> list[str]:
    """Returns what XLA's programs so far say to or hear from the host."""
    texts = [p.read_text() for p in DUMPS.glob("module_*.before_optimizations.txt")]
    words = r" (infeed|outfeed|send|recv|custom-call)\("
    return [word for text in texts for word in re.findall(words, text)]


def trained(strategy, jit_compile, policy="float64"):
    """Trains for three epochs.

    In float64 as a rule: what rounding alone does in float32 would hide mistakes.
    """
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    generator = np.random.default_rng(0)
    x = generator.random((96, 32, 32, 3), "float32")
    y = generator.integers(0, 10, 96)
    before = compilations()
    traces, by_epoch = [], []

    def loss(y_true, y_pred):
        traces.append(None)
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )

    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: by_epoch.append((len(traces), compilations()))
    )
    with scope(strategy):
        model = fastnet.models.cifar_resnet(8, first_strides=2)
        model.compile(
            fastnet.LargeBatchOptimizer(fastnet.LARS(0.1), accumulation_steps=2),
            loss,
            metrics=["accuracy"],
            jit_compile=jit_compile,
        )
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[fastnet.callbacks.BatchGrowth(GROWTH), note],
    ).history
    return model, {
        "loss": history["loss"],
        "updates": int(model.optimizer.iterations.numpy()),
        "traces": [traces for traces, _ in by_epoch],
        "compilations": [programs - before for _, programs in by_epoch],
    }


def main() -> None:
    """Runs the cases and prints what came out."""
    outcomes = {}
    for where in ("one", "two"):
        # Once there is one, models are made for it alone.
        strategy = fastnet.TorusStrategy() if where == "two" else None
        plain, outcomes[where] = trained(strategy, False)
        compiled, outcomes[f"{where} compiled"] = trained(strategy, True)
        outcomes[f"{where} compiled"]["difference"] = max(
            float(np.abs(a - b).max())
            for a, b in zip(plain.get_weights(), compiled.get_weights(), strict=True)
        )
    outcomes["transfers"] = transfers_to_the_host()
    outcomes["two float16 compiled"] = trained(strategy, True, "mixed_float16")[1]
    print(json.dumps(outcomes))


main()
