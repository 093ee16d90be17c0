"""Backups of several workers: resumed, also with another number, or refused on all."""

import random
import shutil

import numpy as np
import pytest

from keras_fastnet.callbacks.backups import backup_file
from tests.callbacks.backup_trainings import backups_in

pytestmark = pytest.mark.distributed


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


THREE = slow("three_workers")


def assert_same(mine, theirs, exactly, names=("weights", "optimizer")):
    for name in names:
        for one, other in zip(mine[name], theirs[name], strict=True):
            tolerance = (0, 0) if exactly else (1e-4, 1e-5)
            np.testing.assert_allclose(one, other, *tolerance)


@pytest.fixture(scope="module")
def interrupted(two_workers, tmp_path_factory):
    """A folder that two workers left in the midst of the second epoch."""
    folder = tmp_path_factory.mktemp("interrupted")
    for result in two_workers.run("fit_with_backups", folder=str(folder), stop_after=9):
        assert result["error"] == "Stop: "
    names = [path.name for path in backups_in(folder)]
    # Of two updates of two batches the second is not complete.
    assert names[0] == backup_file.file_name(1, 2)
    return folder


@pytest.fixture(scope="module")
def whole(two_workers, tmp_path_factory):
    """The results of two workers that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "backups"
    return two_workers.run("fit_with_backups", folder=str(folder))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("arrays", 96),
        *(slow(kind, 96) for kind in ("own", "pydataset", "endless", "unknown")),
        # The second has smaller last batches.
        *(slow("dataset", count) for count in (96, 90)),
    ],
)
@pytest.mark.parametrize("pool", ["two_workers", slow("one_by_two")])
def test_an_interrupted_training_ends_as_a_whole_one(
    request, tmp_path, pool, kind, count
):
    run = request.getfixturevalue(pool).run
    settings = {"kind": kind, "count": count, "dropout": 0.3}
    whole = run("fit_with_backups", folder=str(tmp_path / "whole"), **settings)
    settings["folder"] = str(tmp_path / "ended")
    generator = random.Random(0)
    for _ in range(3):
        steps = generator.randint(1, 4)
        for result in run("fit_with_backups", stop_after=steps, **settings):
            assert result["error"] == "Stop: "
    ended = run("fit_with_backups", **settings)
    assert "resuming at" in ended[0]["printed"]
    for mine, theirs in zip(ended, whole, strict=True):
        assert_same(mine, theirs, exactly=count % 16 == 0)
        for name, value in theirs["logs"].items():
            # Restored metrics are divided among the replicas.
            assert mine["logs"][name] == pytest.approx(value, 1e-4)
    assert not backups_in(tmp_path / "ended")


def test_sigterm_to_one_worker_ends_all(two_workers, whole, tmp_path):
    """After the same update, with a backup of it."""
    settings = {"folder": str(tmp_path), "save_freq": "epoch"}
    told = two_workers.run("fit_with_backups", sigterm_after=2, **settings)
    assert {result["error"] for result in told} == {"SystemExit: 143"}
    assert len({result["iterations"] for result in told}) == 1
    assert "run the same command to resume" in told[0]["printed"]
    results = two_workers.run("fit_with_backups", **settings)
    after = f"after {told[0]['iterations']} updates"
    assert after in results[0]["printed"]
    assert_same(results[0], whole[0], exactly=True)


@pytest.mark.parametrize("pool", ["one_device", THREE])
def test_another_number_of_workers_resumes(request, pool, interrupted, whole, tmp_path):
    folder = tmp_path / "backups"
    shutil.copytree(interrupted, folder)
    workers = request.getfixturevalue(pool)
    results = workers.run("fit_with_backups", folder=str(folder))
    assert "resuming at epoch 2, batch 3, after 7 updates" in results[0]["printed"]
    assert "sums are rounded differently" in results[0]["printed"]
    for result in results:
        assert result["error"] == ""
        assert result["iterations"] == 11
        names = ("weights", "inner optimizer")
        assert_same(result, whole[0], exactly=False, names=names)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 8}, "random seed: 7 in the backup, 8 in this training"),
        ({"folder": "/sys/fastnet"}, "`backup_dir` must be a folder in which"),
    ],
)
def test_all_workers_refuse(two_workers, interrupted, tmp_path, changed, words):
    folder = tmp_path / "backups"
    shutil.copytree(interrupted, folder)
    options = {"folder": str(folder), **changed}
    for result in two_workers.run("fit_with_backups", **options):
        assert result["error"].startswith("ValueError: ")
        assert words in result["error"]
        assert result["iterations"] == 0


@pytest.mark.parametrize("pool", ["one_by_two", "two_workers", THREE])
def test_counts_of_metrics_are_restored_whole(request, pool):
    """A part for each replica would lose the rest of integers."""
    for counts in request.getfixturevalue(pool).run("restored_counts"):
        assert counts == [[1, 3], [5, 7]]
