"""Times MPI's own all-reduce beside the package's, as a rank of MPI.

fastnet run --workers 4 --transport mpi mpi_itself.py FILE ROUNDS BYTES...

Adds its rows to FILE, which `fastnet bench` wrote. run.py starts it.
"""

import json
import pathlib
import statistics
import sys

import numpy as np

import keras_fastnet
from keras_fastnet.collectives.mpi_transport import mpi_sums
from keras_fastnet.scaling.all_reduce_timing import time_in_turn


def main() -> None:
    """Times both for every size; rank 0 writes."""
    path, rounds, *sizes = sys.argv[1:]
    strategy = keras_fastnet.TorusStrategy()
    extended = strategy.extended
    choice = extended.choice
    communicator = extended.mpi.communicator.Dup()
    peers = communicator, extended.monitor.poll
    (sums,) = mpi_sums(choice.grid, extended.hosts, *peers, choice.algorithm_for)
    rows = []
    for nbytes in map(int, sizes):
        vector = np.ones(nbytes // 4, np.float32)
        total = np.empty_like(vector)

        def itself(vector=vector, total=total):
            communicator.Allreduce(vector, total)
            return [total]

        def ours(vector=vector):
            return [sums.sum_arrays([0], 0, vector)[: len(vector)]]

        found = time_in_turn(
            [itself, ours],
            lambda sums: None,
            lambda own: communicator.bcast(own),
            warm_up_calls=1 if nbytes > 2**20 else 3,
            rounds=int(rounds),
        )
        for name, grid, seconds in (
            ("MPI_Allreduce", [choice.grid.size, 1], found[0]),
            ("auto, Python", [choice.grid.rows, choice.grid.columns], found[1]),
        ):
            rows.append(
                {
                    "algorithm": name,
                    "grid": grid,
                    "bytes": nbytes,
                    "seconds": statistics.median(seconds),
                    "seconds_min": min(seconds),
                    "seconds_max": max(seconds),
                }
            )
    if strategy.rank == 0:
        file = pathlib.Path(path)
        document = json.loads(file.read_text())
        document["all_reduce"] += rows
        file.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
