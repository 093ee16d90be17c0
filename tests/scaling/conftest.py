"""A file as `fastnet bench` writes it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

# Timed with a ring of four ranks on two cores. On a core of its own a rank takes 100 us
# a message and 1 ns a byte: 6 messages and 1.5 vectors, and twice that on half a core.
BENCH = {
    "format": 1,
    "transport": "tensorflow",
    "ranks": 4,
    "hosts": 1,
    "ranks_per_host": 4,
    "cores_per_host": 2,
    "wire_dtype": "float32",
    "bucket_bytes": 1_000_000_000,
    "all_reduce": [
        {"algorithm": "ring", "grid": [1, 4], "bytes": n, "seconds": 2 * seconds}
        for n, seconds in ((1e3, 6e-4 + 1.5e-6), (1e6, 6e-4 + 1.5e-3), (1e8, 0.1506))
    ],
}


@pytest.fixture
def bench_file(tmp_path) -> Callable[..., str]:
    """Writes the file with some entries changed, and returns its path."""

    def write(**changes: Any) -> str:
        path = tmp_path / "bench.json"
        path.write_text(json.dumps({**BENCH, **changes}))
        return str(path)

    return write
