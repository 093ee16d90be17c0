"""`fastnet run --max-restarts` with trainings that back themselves up."""

import functools
import sys

import pytest

from tests.cluster.processes import TRAIN, check_weights, weights_of

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture
def run(fastnet):
    return functools.partial(fastnet, "run", "--workers", 2, "--max-restarts", 4)


# What happens to a rank at an update, and what the launcher prints about it.
FAILURES = {
    "1:5:kill": "worker 1 failed first: killed by SIGKILL",
    "1:20:stop": "rank 1 does not answer",
    "0:22:raise": "failed first: RuntimeError: no data",
}


@pytest.mark.parametrize(
    ("transport", "orders"),
    [
        ("mpi", list(FAILURES)[:1]),
        pytest.param("mpi", list(FAILURES), marks=pytest.mark.slow),
        pytest.param("tensorflow", list(FAILURES), marks=pytest.mark.slow),
    ],
)
def test_training_that_fails_ends_with_the_same_weights(
    run, tmp_path, transport, orders
):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    words = ("--transport", transport, TRAIN)
    done = run(*words, broken, "2", "0", "auto", *orders)
    assert done.returncode == 0, done.stderr
    for order in orders:
        assert FAILURES[order] in done.stderr
    assert f"restart {len(orders)} of 4" in done.stderr
    # The callback that fails comes before the one that backs up.
    update = int(orders[-1].split(":")[1]) - 1
    assert f"after {update} updates, from" in done.stdout
    assert run(*words, whole, "2", "0").returncode == 0
    check_weights(whole / "rank-0.npz", *weights_of(whole), *weights_of(broken))
