"""Backups of several workers: refused on all, and resumed with another number."""

import shutil

import numpy as np
import pytest

from keras_fastnet import TorusStrategy
from keras_fastnet.callbacks.backups import backup_file
from tests.callbacks.backup_trainings import backups_in
from tests.distributed import backup_jobs

pytestmark = pytest.mark.distributed

THREE = pytest.param("three_workers", marks=pytest.mark.slow)


def in_this_process(job, **kwargs):
    return [getattr(backup_jobs, job)(TorusStrategy(), **kwargs)]


@pytest.fixture(scope="module")
def interrupted(two_workers, tmp_path_factory):
    """A folder that two workers left in the midst of the second epoch."""
    folder = tmp_path_factory.mktemp("interrupted")
    for result in two_workers.run("fit_with_backups", folder=str(folder), stop_after=9):
        assert result["error"] == "Stop: "
    names = [path.name for path in backups_in(folder)]
    assert names[0] == backup_file.file_name(1, 3)
    return folder


@pytest.fixture(scope="module")
def whole(two_workers, tmp_path_factory):
    """The results of two workers that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "backups"
    return two_workers.run("fit_with_backups", folder=str(folder))


@pytest.mark.parametrize("pool", ["two_workers", "in_this_process", THREE])
def test_any_number_of_workers_resumes(request, pool, interrupted, whole, tmp_path):
    folder = tmp_path / "backups"
    shutil.copytree(interrupted, folder)
    if pool == "in_this_process":
        results = in_this_process("fit_with_backups", folder=str(folder))
    else:
        workers = request.getfixturevalue(pool)
        results = workers.run("fit_with_backups", folder=str(folder))
    assert "resuming at epoch 2, batch 4, after 9 updates" in results[0]["printed"]
    replicas = {"in_this_process": 1, "three_workers": 3}.get(pool, 2)
    assert ("sums are rounded differently" in results[0]["printed"]) == (replicas != 2)
    for result in results:
        assert result["error"] == ""
        assert result["iterations"] == 18
        for name in ("weights", "optimizer"):
            for mine, theirs in zip(result[name], whole[0][name], strict=True):
                if pool == "two_workers":
                    np.testing.assert_array_equal(mine, theirs)
                else:
                    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert not backups_in(folder)


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
