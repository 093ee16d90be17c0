"""Keras callbacks on several workers: all stop together, and the chief writes."""

import pytest

from keras_fastnet._keras.keras_api import keras

pytestmark = pytest.mark.distributed


# Number of updates until all workers stop.
@pytest.mark.parametrize(
    ("when", "updates"),
    [
        ("batch", 2),
        ("lambda", 2),
        # At the end of the epoch.
        ("unforeseen", 3),
        ("epoch", 6),
        ("nan", 2),
        ("early", 6),
    ],
)
def test_workers_stop_together(two_workers, when, updates):
    results = two_workers.run("fit_and_stop", when=when)
    assert {result["iterations"] for result in results} == {updates}
    is_told = when == "unforeseen"
    for result in results:
        assert ("stop at the end of the epoch" in result["printed"]) == is_told


def test_only_the_chief_writes(two_workers, tmp_path):
    for result in two_workers.run("fit_and_write", folder=str(tmp_path)):
        assert result["iterations"] == 4
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1"]
    assert keras.models.load_model(tmp_path / "model.keras").count_params() > 0
    assert len(list((tmp_path / "board" / "train").glob("events*"))) == 1


def test_keras_backup_and_restore_raises(two_workers, tmp_path):
    for text in two_workers.run("fit_with_keras_backup", folder=str(tmp_path)):
        assert "Use keras_fastnet.callbacks.BackupAndRestore" in text


def test_a_logger_of_the_chief_alone_gets_what_monitors_add(two_workers):
    chief, other = two_workers.run("tracked")
    assert len(chief) == 2 and other == []
    for keys in chief:
        assert {"loss", "examples_per_second", "trust_ratio_min"} <= set(keys)
