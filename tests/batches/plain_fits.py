"""Trains with Keras's defaults and a seed; writes the losses to a file.

python plain_fits.py losses.json [strategy]
"""

import contextlib
import json
import sys

import keras
import numpy as np
import tensorflow as tf

COUNT, FEATURES = 83, 5


def losses(strategy, kind, **options):
    """Returns the loss of every step and epoch."""
    keras.utils.set_random_seed(7)
    generator = np.random.default_rng(0)
    dense = generator.normal(size=(COUNT, FEATURES))
    y = (dense.sum(1) > 0).astype("int64")
    x = {
        "dense": dense,
        "sparse": tf.sparse.from_dense(np.where(dense > 0, dense, 0)),
        "ragged": tf.RaggedTensor.from_tensor(dense),
    }[kind]
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([
            keras.Input((FEATURES,), sparse=kind == "sparse", ragged=kind == "ragged"),
            keras.layers.Dense(4, "tanh"),
            keras.layers.Dense(2),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    history = model.fit(x, y, epochs=3, verbose=0, callbacks=[note], **options)
    return [*seen, *(loss for name in history.history.values() for loss in name)]


CASES = {
    "defaults": ("dense", {}),
    "shuffled within batches": ("dense", {"shuffle": "batch", "batch_size": 16}),
    "split and weights": (
        "dense",
        {"validation_split": 0.3, "class_weight": {0: 1.0, 1: 3.0}, "batch_size": 9},
    ),
    "sparse": ("sparse", {"batch_size": 20}),
    "ragged": ("ragged", {"batch_size": 20}),
}


def main(path, *names):
    keras.config.set_floatx("float64")
    strategy = None
    if names:
        import keras_fastnet

        strategy = keras_fastnet.TorusStrategy()
        path = f"{path}.{strategy.rank}"
    seen = {name: losses(strategy, kind, **o) for name, (kind, o) in CASES.items()}
    assert names or "keras_fastnet" not in sys.modules
    with open(path, "w") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
