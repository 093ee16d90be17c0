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


def test_a_killed_training_is_resumed(run, tmp_path):
    done = run("--transport", "mpi", TRAIN, tmp_path, "2", "0", "auto", "1:5:kill")
    assert done.returncode == 0, done.stderr
    assert "worker 1 failed first: killed by SIGKILL" in done.stderr
    assert "restart 1 of 4" in done.stderr
    assert "after 4 updates, from" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["mpi", "tensorflow"])
def test_training_that_fails_in_three_ways_ends_with_the_same_weights(
    run, tmp_path, transport
):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    words = ("--transport", transport, TRAIN)
    orders = ("1:5:kill", "1:20:stop", "0:22:raise")
    done = run(*words, broken, "2", "0", "auto", *orders)
    assert done.returncode == 0, done.stderr
    assert "worker 1 failed first: killed by SIGKILL" in done.stderr
    assert "rank 1 does not answer" in done.stderr
    assert "failed first: RuntimeError: no data" in done.stderr
    assert "restart 3 of 4" in done.stderr
    # The callback that kills comes before the one that backs up.
    assert "resuming at epoch 2, batch 11, after 21 updates" in done.stdout
    assert run(*words, whole, "2", "0").returncode == 0
    check_weights(whole / "rank-0.npz", *weights_of(whole), *weights_of(broken))
