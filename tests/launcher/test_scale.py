"""`fastnet scale`, in real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_fastnet.cli import main
from tests.launcher.test_restarts import check_epochs, check_weights, run  # noqa: F401

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
ACT = SCRIPTS / "act.py"
TRAIN = SCRIPTS / "train_with_restarts.py"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture
def scale(environment):
    """Runs `fastnet scale` for a launcher; returns its exit code and what it wrote."""

    def scale(workers, launcher):
        words = ("scale", str(workers), "--pid", str(launcher.pid))
        command = [sys.executable, "-m", "keras_fastnet.cli", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return scale


def await_line(process, text):
    line = b"begin"
    while line and text not in line.decode():
        line = process.stdout.readline()
    assert line, process.stderr.read().decode()


def test_number_of_workers_changes_on_request(start, scale, tmp_path):
    report = tmp_path / "report.json"
    words = ("--min-workers", 2, "--max-workers", 4, "--report", report)
    orders = [f"{rank}=fit" for rank in range(4)]
    launcher = start("--workers", 3, *words, ACT, tmp_path, *orders)
    await_line(launcher, "[0] rank 0 trains")
    code, text = scale(4, launcher)
    assert code == 0, text
    assert "continues with 4 workers instead of 3" in text
    await_line(launcher, "[0] rank 0 trains")
    assert scale(2, launcher)[0] == 0
    await_line(launcher, "[0] rank 0 trains")
    for workers, reason in ((1, "from 2 to 4"), (5, "from 2 to 4"), (2, "another")):
        code, text = scale(workers, launcher)
        assert code == 2
        assert reason in text
    launcher.send_signal(signal.SIGINT)
    errors = launcher.communicate(timeout=60)[1].decode()
    assert launcher.returncode == 130
    assert "`fastnet scale 4`, ending the workers at the next update" in errors
    assert "continuing with 2 workers" in errors
    assert "failed" not in errors
    content = json.loads(report.read_text())
    assert [len(s["slots"]) for s in content["starts"]] == [3, 4, 2]
    assert [s["scaled_to"] for s in content["starts"]] == [4, 2, None]
    assert [s["failure"] for s in content["starts"]] == [None] * 3
    assert content["restarts"] == 0


def test_training_without_backups_is_not_ended(start, scale, tmp_path):
    """Its progress would be lost."""
    launcher = start("-n", 2, "--min-workers", 1, ACT, tmp_path, "0=sleep", "1=sleep")
    await_line(launcher, "[0] rank 0 says hello")
    code, text = scale(1, launcher)
    assert code == 2
    assert "needs a `fit` with `keras_fastnet.callbacks.BackupAndRestore`" in text


def test_failure_meanwhile_is_restarted_with_the_new_number(start, scale, tmp_path):
    # Rank 1 ends with the exit code 41, although it was asked to leave.
    orders = ("0=once fit", "1=once deaf fail-when-told", "2=once fit")
    words = ("--min-workers", 2, "--max-restarts", 1)
    launcher = start("--workers", 3, *words, ACT, tmp_path, *orders)
    await_line(launcher, "[0] rank 0 trains")
    assert scale(2, launcher)[0] == 0
    (tmp_path / "fail-1").touch()
    errors = launcher.communicate(timeout=60)[1].decode()
    assert launcher.returncode == 0, errors
    assert "worker 1 failed first: exit code 41" in errors
    assert "restart 1 of 1 in 1 s, with 2 workers" in errors


def test_launcher_must_be_found(capsys):
    assert main(["scale", "2", "--pid", str(os.getpid())]) == 2
    message = f"with --pid {os.getpid()}"
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tensorflow", "mpi"])
def test_training_continues_with_more_and_fewer_workers(
    run,  # noqa: F811
    tmp_path,
    transport,
):
    words = ("--min-workers", 2, "--max-workers", 4, "--transport", transport)
    orders = ("grow", "0:1:scale-4", "0:4:scale-2", "1:5:kill")
    # Update 4 is the last one of the first epoch.
    done, report = run(3, 2, TRAIN, *orders, options=words)
    assert done.returncode == 0, done.stderr
    assert [start["workers"] for start in report["starts"]] == [3, 4, 2, 2]
    for before, after in zip(report["starts"], report["starts"][1:], strict=False):
        newest = before["last_backup"] or before["resumed_from"]
        assert after["resumed_from"] == newest
    check_weights(tmp_path, 2, exactly=False)
    check_epochs(tmp_path)
