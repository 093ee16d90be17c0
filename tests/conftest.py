"""Pools of worker processes, shared by all distributed tests."""

from collections.abc import Iterator

import pytest

from tests.distributed.worker_pool import WorkerPool


def _pool(workers: int, devices: int = 1):
    @pytest.fixture(scope="session")
    def pool() -> Iterator[WorkerPool]:
        pool = WorkerPool(workers, devices)
        yield pool
        pool.stop()

    return pool


one_device = _pool(1)
two_workers = _pool(2)
four_workers = _pool(4)
two_by_two = _pool(2, devices=2)
