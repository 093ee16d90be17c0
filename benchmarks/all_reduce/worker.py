"""One rank of the all-reduce benchmark; rank 0 writes the times to a file."""

import argparse
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from keras_fastnet import TorusStrategy
from keras_fastnet._upstream import tensorflow as upstream
from keras_fastnet.collectives.all_reducer import AllReducer
from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.collectives.tensorflow_transport import TensorFlowTransport

GATHER_LIMIT = 2**18  # Beyond it, gathering whole vectors is far behind.


def contestants(strategy: TorusStrategy) -> dict:
    """Returns functions that sum a list of tensors, by algorithm and grid."""
    extended = strategy.extended
    ranks = strategy.num_replicas_in_sync
    options = tf.distribute.experimental.CommunicationOptions()
    peer = upstream.CollectiveAllReduce(
        devices=extended.worker_devices,
        group_size=ranks,
        options=options,
        collective_keys=extended._collective_keys,
    )
    ours = extended._cross_device_ops
    total = tf.distribute.ReduceOp.SUM
    found = {
        ("tensorflow", Grid(ranks, 1)): lambda x: peer._all_reduce(
            total, x, 0, options
        ),
        ("auto", strategy.grid): lambda x: ours._all_reduce(total, x, 0, options),
    }
    squarest = min(grids_of(ranks), key=lambda grid: grid.rows + grid.columns)
    transport = TensorFlowTransport(
        squarest, extended.hosts, extended.worker_devices, strategy.rank
    )
    groups = transport.rows[0], transport.columns[0], transport.everyone[0]
    for algorithm in ("ring", "torus", "gather"):
        reducer = AllReducer(
            *groups,
            lambda _, algorithm=algorithm: algorithm,
            bucket_bytes=extended.reduction.bucket_bytes,
        )
        found[algorithm, squarest] = reducer.sum
    return found


def measure(
    strategy: TorusStrategy, contestants: dict, nbytes: int, rounds: int
) -> list[dict]:
    """Times all contestants in turn, `rounds` times."""
    ranks = strategy.num_replicas_in_sync
    vector = tf.constant(np.arange(nbytes // 4) % 13 + strategy.rank, tf.float32)
    expected = ranks * (np.arange(nbytes // 4) % 13) + ranks * (ranks - 1) // 2
    functions = {
        key: tf.function(lambda x, function=function: function([x])[0])
        for key, function in contestants.items()
        if key[0] != "gather" or nbytes <= GATHER_LIMIT
    }
    for function in functions.values():
        for _ in range(2):
            np.testing.assert_array_equal(function(vector), expected)
    calls = max(1, min(10, 2**22 // nbytes))
    times: dict = {key: [] for key in functions}
    for _ in range(rounds):
        for key, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function(vector)
            times[key].append((time.perf_counter() - start) / calls)
    return [
        {
            "algorithm": algorithm,
            "grid": [grid.rows, grid.columns],
            "bytes": nbytes,
            "seconds": statistics.median(seconds),
            "seconds_min": min(seconds),
            "seconds_max": max(seconds),
        }
        for (algorithm, grid), seconds in times.items()
    ]


def main() -> None:
    """Measures all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    strategy = TorusStrategy()
    rows = []
    taking_part = contestants(strategy)
    for nbytes in arguments.sizes:
        rows += measure(strategy, taking_part, nbytes, arguments.rounds)
        if strategy.rank == 0:
            print(nbytes, "bytes", flush=True)
    if strategy.rank == 0:
        with open(arguments.output, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
