"""One worker of `fastnet bench`.

`fastnet bench` starts it as `python -m keras_fastnet.scaling.bench_worker FILE
OPTIONS`. Rank 0 writes the results to FILE, as JSON.
"""

import datetime
import platform
import statistics
import sys
from typing import Any

import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.collectives.cost_model import Topology
from keras_fastnet.collectives.grid import Grid, grids_of
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.machine import available_cpus, processor_name
from keras_fastnet.scaling.all_reduce_timing import AllReduces, finish, time_in_turn
from keras_fastnet.scaling.bench_options import BenchOptions, check_ranks
from keras_fastnet.scaling.bench_results import FORMAT, write
from keras_fastnet.scaling.training_timing import weak_scaling

_LONG_BYTES = 2**20


def measure(options: BenchOptions) -> dict[str, Any] | None:
    """Joins the cluster of this process and measures it.

    Args:
        options: The options, the same on all workers.

    Returns:
        The results on rank 0; `None` on other ranks.

    Raises:
        ClusterError: If the cluster cannot form.
        UsageError: If the options do not fit the cluster or the model.
    """
    strategy = keras_fastnet.TorusStrategy(
        wire_dtype=None if options.wire_dtype == "float32" else options.wire_dtype
    )
    ranks = strategy.num_replicas_in_sync
    check_ranks(ranks, options.grids)
    grids = options.grids or dict.fromkeys([strategy.grid, _squarest(ranks)])
    progress = _Progress(strategy.extended.rank == 0)
    scaling = None
    if options.model is not None:
        scaling = weak_scaling(strategy, options, progress.say)
        keras.backend.clear_session()
    all_reduces = AllReduces(strategy, list(grids))
    rows = []
    for nbytes in options.sizes:
        progress.say(f"all-reduce of {nbytes:,} bytes")
        rows += _rows(all_reduces, nbytes, options.repeats)
    progress.end()
    if strategy.extended.rank > 0:
        return None
    topology = Topology.of(strategy.extended.hosts)
    document = {
        "format": FORMAT,
        "command": options.command,
        "date": datetime.date.today().isoformat(),
        "cpu": processor_name(),
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "keras_fastnet": keras_fastnet.__version__,
        },
        "transport": "tensorflow" if strategy.extended.mpi is None else "mpi",
        "ranks": ranks,
        "hosts": topology.hosts,
        "ranks_per_host": topology.ranks_per_host,
        "cores_per_host": available_cpus(),
        "wire_dtype": options.wire_dtype,
        "bucket_bytes": strategy.extended.reduction.bucket_bytes,
        "rounds": options.repeats,
        "all_reduce": rows,
    }
    return document if scaling is None else {**document, "weak_scaling": scaling}


class _Progress:
    """Shows one line on stderr that says what is being measured.

    Args:
        shown: Whether to show it.
    """

    def __init__(self, shown: bool):
        self._shown = shown

    def say(self, text: str) -> None:
        """Replaces the line."""
        if self._shown:
            print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Ends the line."""
        if self._shown:
            print(file=sys.stderr, flush=True)


def _rows(all_reduces: AllReduces, nbytes: int, rounds: int) -> list[dict[str, Any]]:
    ways = all_reduces.of_size(nbytes)
    found = time_in_turn(
        all_reduces.functions(ways, nbytes),
        finish,
        all_reduces.agree,
        warm_up_calls=1 if nbytes > _LONG_BYTES else 3,
        rounds=rounds,
    )
    return [
        {
            "algorithm": way.algorithm,
            "grid": [way.grid.rows, way.grid.columns],
            "bytes": nbytes,
            "seconds": statistics.median(seconds),
            "seconds_min": min(seconds),
            "seconds_max": max(seconds),
        }
        for way, seconds in zip(ways, found, strict=True)
    ]


def _squarest(ranks: int) -> Grid:
    """Returns the grid closest to a square. Of two it takes the wide one."""
    return min(grids_of(ranks), key=lambda grid: grid.rows + grid.columns)


def main() -> int:
    """Runs one worker that `fastnet bench` started."""
    output, text = sys.argv[1:]
    try:
        document = measure(BenchOptions.from_json(text))
    except UsageError as error:
        print(f"fastnet: error: {error}", file=sys.stderr)
        return 2
    if document is not None:
        write(document, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
