"""`fastnet run --hosts`, where a script enters network namespaces in place of ssh."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from keras_fastnet.cli import main
from tests.launcher.test_run_command import is_gone, pids

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
ACT = SCRIPTS / "act.py"
TRAIN = SCRIPTS / "train_with_restarts.py"
SSH = SCRIPTS / "ssh_into_namespace.sh"
HOSTS = "10.77.0.1:2,10.77.0.2:2"

pytestmark = [pytest.mark.distributed, pytest.mark.hosts]


@pytest.fixture
def begin(start, network):
    """Starts `fastnet run --hosts` in the background."""

    def begin(*words, hosts=HOSTS):
        return start("--hosts", hosts, "--ssh", f"sh {SSH} {network.name}", *words)

    return begin


@pytest.fixture
def as_under_nohup():
    """Ignored signals are inherited."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, previous)


def end(process):
    out, errors = process.communicate(timeout=240)
    return process.returncode, out.decode(), errors.decode()


def test_output_of_all_hosts_comes_here(begin, tmp_path):
    logs = tmp_path / "logs"
    words = ("--all-output", "--max-restarts", 1, "--log-dir", logs)
    script = tmp_path / "it's a script.py"
    script.write_text(ACT.read_text())
    code, out, errors = end(begin(*words, script, tmp_path, "3=once crash"))
    assert code == 0, errors
    hello = {f"[{rank}] rank {rank} says hello" for rank in range(4)}
    assert set(out.splitlines()) == hello
    failed = "worker 3 failed first: killed by SIGKILL"
    assert f"10.77.0.2: fastnet: {failed}" in errors
    assert f"10.77.0.1: fastnet: on machine 1 (10.77.0.2), {failed}" in errors
    assert "[2] " not in errors
    assert "rank 3 says" in (logs / "machine-1" / "rank-1.log").read_text()


def test_failure_ends_all_hosts(begin, tmp_path):
    orders = ("0=sleep", "1=sleep", "2=raise", "3=sleep")
    code, _, errors = end(begin(ACT, tmp_path, *orders))
    assert code == 1
    assert "[2] RuntimeError: rank 2 is broken" in errors
    found = "on machine 1 (10.77.0.2), worker 2 failed first: RuntimeError: rank 2"
    assert f"10.77.0.1: fastnet: {found}" in errors
    assert all(is_gone(pid) for pid in pids(tmp_path, 0, 1, 2, 3))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_command_ends_all_hosts(begin, tmp_path, as_under_nohup, number):
    process = begin(ACT, tmp_path, *[f"{rank}=sleep" for rank in range(4)])
    workers = pids(tmp_path, 0, 1, 2, 3)
    process.send_signal(number)
    code, _, errors = end(process)
    if number == signal.SIGINT:
        assert code == 130, errors
        assert "10.77.0.2: fastnet: SIGINT, ending the workers" in errors
    limit = time.monotonic() + 60.0
    while not all(is_gone(pid) for pid in workers):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_host_that_cannot_be_reached_ends_the_others(begin, tmp_path):
    hosts = "10.77.0.1:1,nowhere:1"
    code, _, errors = end(begin(ACT, tmp_path, "0=sleep", hosts=hosts))
    assert code == 255
    assert "nowhere: ssh: Could not resolve hostname" in errors
    assert "machine 1 (nowhere) ended with exit code 255 (ssh could not" in errors


def test_one_host_needs_no_rendezvous(begin, tmp_path):
    code, out, errors = end(begin("--all-output", ACT, tmp_path, hosts="10.77.0.2:2"))
    assert code == 0, errors
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--hosts a", "must be hosts for ssh"),
        ("--hosts -oProxyCommand=x:1", "expected one argument"),
        ("--hosts a:1,-b:1", "must be hosts for ssh"),
        ("--hosts a:0", "must be hosts for ssh"),
        ("--hosts a:1 --workers 2", "--workers must not be passed with --hosts"),
        ("--hosts a:1 --dry-run", "--dry-run must not be passed with --hosts"),
        ("--hosts a:1 --ssh no-such-program", "Received: no-such-program (No such"),
    ],
)
def test_invalid_options_are_errors(capsys, words, message):
    assert main(["run", *words.split(), os.fspath(ACT)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_training_that_is_killed_ends_with_the_same_weights(begin, tmp_path):
    orders = ("3:12:kill", "0:18:raise")
    code, out, errors = end(begin("--max-restarts", 3, TRAIN, tmp_path, *orders))
    assert code == 0, errors
    assert "resuming at epoch 2, batch 4, after 11 updates" in out
    for rank in range(4):
        mine, whole = (
            np.load(tmp_path / f"{name}-{rank}.npz") for name in ("weights", "whole")
        )
        for name in whole.files:
            np.testing.assert_array_equal(mine[name], whole[name])
