"""One process of a training of 250 examples in batches of 32, in one of three ways.

`run.py` starts it with the way, its rank, the number of processes, a port and the file
for the result.
"""

import json
import os
import pathlib
import sys

os.environ["KERAS_BACKEND"] = sys.argv[1].replace("torus", "tensorflow")

import keras
import numpy as np

WAY, RANK, PROCESSES, PORT = sys.argv[1], *map(int, sys.argv[2:5])
OUTPUT = pathlib.Path(sys.argv[5])
EXAMPLES, BATCH, EPOCHS, RATE = 250, 32, 2, 0.1


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *layers])


def by_fit(model: keras.Model, data) -> list[float]:
    """Trains by `fit`, and returns the logged losses."""
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model.fit(data, epochs=EPOCHS, verbose=0).history["loss"]


def batches(x, y):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def torus(x, y):
    import keras_fastnet

    strategy = keras_fastnet.TorusStrategy()
    with strategy.scope():
        model = network()
        return model, by_fit(model, batches(x, y))


def jax(x, y):
    if PROCESSES > 1:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        keras.distribution.initialize(f"127.0.0.1:{PORT}", PROCESSES, RANK)
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = network()
    return model, by_fit(model, batches(x, y))


def torch(x, y):
    """The loop of Keras's guide to several GPUs with PyTorch."""
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    model = network()
    module, sampler = model, None
    if PROCESSES > 1:
        torch.distributed.init_process_group(
            "gloo", f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=PROCESSES
        )
        sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
        module = torch.nn.parallel.DistributedDataParallel(model)
    loader = torch.utils.data.DataLoader(data, BATCH // PROCESSES, sampler=sampler)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(inputs), targets).backward()
            optimizer.step()
    return model, []


def main() -> None:
    examples = EXAMPLES if "--even" not in sys.argv else EXAMPLES // BATCH * BATCH
    x = np.random.default_rng(0).normal(size=(examples, 8)).astype("float32")
    model, losses = globals()[WAY](x, x.sum(axis=1, keepdims=True))
    weights = [w.tolist() for w in model.get_weights()]
    result = {"losses": losses, "weights": weights, "keras": keras.__version__}
    OUTPUT.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
