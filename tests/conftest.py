"""Pools of worker processes, shared by all distributed tests, and the launcher."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_fastnet._keras.keras_api import IS_KERAS_2
from tests.distributed.worker_pool import WorkerPool
from tests.keras_2 import COVERED, reason_to_leave_out


def pytest_configure(config: pytest.Config) -> None:
    """Gives the tests' processes a folder for what they leave behind when killed.

    TensorFlow writes a file for every function that it converts.
    """
    folder = tempfile.TemporaryDirectory(prefix="fastnet-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["TMPDIR"] = folder.name


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Leaves out, with Keras 2, the modules that are written for Keras 3."""
    module = collection_path.stem if collection_path.suffix == ".py" else ""
    left_out = module.startswith("test_") and module not in COVERED
    return True if IS_KERAS_2 and left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs with Keras 2, and leaves out there what cannot."""
    for item in items:
        if item.path.stem in COVERED:
            item.add_marker(pytest.mark.keras2)
        reason = reason_to_leave_out(item.nodeid)
        if IS_KERAS_2 and reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _pool(workers: int, devices: int = 1, **kind: bool):
    @pytest.fixture(scope="session")
    def pool() -> Iterator[WorkerPool]:
        pool = WorkerPool(workers, devices, **kind)
        yield pool
        pool.stop()

    return pool


one_device = _pool(1)
two_workers = _pool(2)
three_workers = _pool(3)
four_workers = _pool(4)
six_workers = _pool(6)
eight_workers = _pool(8)
nine_workers = _pool(9)
two_by_two = _pool(2, devices=2)
one_by_two = _pool(1, devices=2)
tpu = _pool(1, devices=4, tpu=True)
two_mpi = _pool(2, mpi=True)
four_mpi = _pool(4, mpi=True)
nine_mpi = _pool(9, mpi=True)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a user who has set nothing for TensorFlow but its Keras."""
    ours = ("TF_", "OMP_", "PYTEST", "COV_")
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(ours) or k == "TF_USE_LEGACY_KERAS"
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "TERM": "xterm"}


@pytest.fixture
def bench_file(tmp_path) -> Callable[..., str]:
    """Writes what `fastnet bench` would, with entries changed, and returns its path."""

    def write(document: dict[str, Any], **changes: Any) -> str:
        path = tmp_path / "bench.json"
        path.write_text(json.dumps({**document, **changes}))
        return str(path)

    return write


@pytest.fixture
def fastnet(environment) -> Callable[..., subprocess.CompletedProcess]:
    """Runs `fastnet` with the given words and variables until it ends."""

    def run(*words: object, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "keras_fastnet.cli", *map(str, words)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run
