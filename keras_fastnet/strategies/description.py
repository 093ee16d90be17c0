"""A text that tells people how a strategy reduces."""

import itertools

from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid_choice import GridChoice
from keras_fastnet.strategies.torus_extended import TorusExtended

_WAYS: dict[Algorithm, str] = {
    "ring": "one ring over all ranks",
    "torus": "reduce-scatter in rows, all-reduce in columns, all-gather in rows",
    "gather": "whole vectors sent to all of the row, then of the column",
}


def describe(extended: TorusExtended, source: str) -> str:
    """Describes the replicas and how they reduce.

    Args:
        extended: The inner half of a strategy.
        source: Who described the cluster.

    Returns:
        Some lines of text.
    """
    reduction, grid = extended.reduction, extended.choice.grid
    devices = len(extended.worker_devices)
    ranks = len(extended.hosts)
    rows = [
        "  ".join(f"{rank} ({extended.hosts[rank]})" for rank in row)
        for row in extended.places
    ]
    own = extended.engine == "MPI"
    carrier = "MPI" if own else f"TensorFlow's collectives, {extended.engine}"
    wire = reduction.wire_dtype
    travels = "every dtype as it is" if wire is None else f"float32 as {wire.name}"
    entries = [
        (
            "ranks",
            f"{ranks} ({extended.workers} worker(s) with {devices} device(s) each); "
            f"this is worker {extended.rank}",
        ),
        ("found by", source),
        ("hosts", ", ".join(dict.fromkeys(extended.hosts))),
        ("grid", f"{grid.rows} row(s) x {grid.columns} column(s)"),
        *(("", row) for row in rows),
        ("transport", f"{carrier}; {travels}"),
        ("buckets", f"{reduction.bucket_bytes:,} bytes"),
        *(("sums", line) for line in _algorithms(extended.choice)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in entries)


def _algorithms(choice: GridChoice) -> list[str]:
    """Returns which algorithm is used up to which size, by powers of two."""
    lines: list[str] = []
    sizes = [2**power for power in range(10, 31)]
    for algorithm, group in itertools.groupby(sizes, choice.algorithm_for):
        largest = list(group)[-1]
        limit = f"to about {largest:,} bytes"
        if largest == sizes[-1]:
            limit = "larger" if lines else "any size"
        lines.append(f"{limit}: {algorithm}, {_WAYS[algorithm]}")
    return lines
