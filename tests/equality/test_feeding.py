"""N workers equal one device on data of which each reads or makes its part alone."""

import functools

import pytest

from tests.distributed.worker_pool import POOLS
from tests.equality.comparing import assert_equal

pytestmark = pytest.mark.distributed


@functools.cache
def on_one_device(job, kind="arrays"):
    return POOLS["one_device"].run(job, kind=kind)


def cells():
    """Yields kinds of data, micro-batches and clusters; CI runs some."""
    for kind in ("mapped", "parts", "pipeline"):
        # Two micro-batches of 4 replicas with 8 examples each, or one of 16.
        for limit in (None, 16):
            for cluster in ("two_by_two", "two_workers", "one_by_two"):
                in_ci = cluster == "two_by_two" and limit
                marks = () if in_ci else pytest.mark.slow
                yield pytest.param(kind, limit, cluster, marks=marks)


@pytest.mark.parametrize(("kind", "max_device_batch", "cluster"), list(cells()))
def test_micro_batches_growth_validation_and_predict(
    request, one_device, kind, max_device_batch, cluster
):
    workers = request.getfixturevalue(cluster)
    several = workers.run(
        "fit_growing_on", kind=kind, max_device_batch=max_device_batch
    )
    assert_equal(on_one_device("fit_growing_on"), several)


@pytest.mark.parametrize("kind", ["mapped", "parts"])
def test_splits_weights_and_shuffled_batches(one_device, two_workers, kind):
    one = on_one_device("fit_shuffled_on", kind)
    assert_equal(one, two_workers.run("fit_shuffled_on", kind=kind))


@pytest.mark.parametrize("kind", ["augmented", "other order"])
def test_workers_compare_their_parts(two_workers, kind):
    for text in two_workers.run("fit_unlike_parts", kind=kind):
        assert ("same global batches" in text) == (kind == "other order")
