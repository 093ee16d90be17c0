"""`fastnet run --nnodes`: launchers on several hosts, which are network namespaces."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.launcher.test_run_command import is_gone, pids

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
ACT = SCRIPTS / "act.py"
TRAIN = SCRIPTS / "train_with_restarts.py"
PATIENCE = 240.0  # against hangs only

pytestmark = [pytest.mark.distributed, pytest.mark.hosts]


class Launchers:
    """A launcher on each host.

    Args:
        network: The hosts.
        environment: The launchers' variables.
    """

    def __init__(self, network, environment):
        self.network = network
        self.environment = environment
        self.started = []

    def start(self, host, *words, rank=None, nnodes=2, workers=2, **variables):
        options = {
            "--workers": workers,
            "--nnodes": nnodes,
            "--node-rank": host if rank is None else rank,
            "--rendezvous": f"{self.network.address(0)}:29400",
        }
        given = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "keras_fastnet.cli", "run", *given]
        process = subprocess.Popen(
            [*self.network.wrapper(host), *command, *map(str, words)],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def both(self, *words):
        return [self.start(host, *words) for host in range(2)]

    def stop(self):
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def launchers(network, environment, interruptible):
    launchers = Launchers(network, environment)
    yield launchers
    launchers.stop()


def ended(processes):
    """Waits for launchers; returns their exit codes, and what they wrote."""
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    codes = [process.returncode for process in processes]
    return codes, [out for out, _ in outputs], [errors for _, errors in outputs]


def test_workers_of_all_machines_start_again(launchers, tmp_path):
    report = tmp_path / "report.json"
    words = ("--max-restarts", 2, "--all-output", ACT, tmp_path, "3=once crash")
    first = launchers.start(0, "--report", report, *words)
    codes, outputs, errors = ended([first, launchers.start(1, *words)])
    assert codes == [0, 0], errors
    for host, ranks in enumerate(([0, 1], [2, 3])):
        hello = {f"[{rank}] rank {rank} says hello" for rank in ranks}
        assert set(outputs[host].splitlines()) == hello
        assert "restart 1 of 2 in 1 s, with 2 workers on this machine" in errors[host]
    failed = "worker 3 failed first: killed by SIGKILL"
    assert f"fastnet: on machine 1 (10.77.0.2), {failed}" in errors[0]
    assert f"fastnet: {failed}" in errors[1]
    found = json.loads(report.read_text())["starts"][0]
    assert found["failure"] is None
    assert found["failure_elsewhere"]["host"] == "10.77.0.2"


def test_number_of_workers_changes_on_all_machines(launchers, tmp_path):
    orders = [f"{rank}=fit" for rank in range(4)]
    report = tmp_path / "report.json"
    words = ("--min-workers", 1, ACT, tmp_path, *orders)
    first = launchers.start(0, "--report", report, *words)
    second = launchers.start(1, *words)
    launcher = ("--pid", str(first.pid))
    scale = [sys.executable, "-m", "keras_fastnet.cli", "scale", *launcher]
    for workers in (3, 2, 4):
        while "rank 0 trains" not in (line := first.stdout.readline()):
            assert line, first.stderr.read()
        subprocess.run([*scale, str(workers)], env=launchers.environment, check=True)
    while "rank 0 trains" not in first.stdout.readline():
        pass
    second.send_signal(signal.SIGINT)
    codes, _, errors = ended([first, second])
    assert codes == [130, 130], errors
    for text in errors:
        assert "`fastnet scale 3`, ending the workers at the next update" in text
        assert "failed" not in text
    assert "continuing with 1 worker on this machine" in errors[1]
    starts = json.loads(report.read_text())["starts"]
    assert [start["workers"] for start in starts] == [2, 2, 1, 2]
    assert [start["scaled_to"] for start in starts] == [3, 2, 4, None]


def test_worker_that_keeps_dying_is_left_out(launchers, tmp_path):
    words = ("--max-restarts", 3, "--min-workers", 1, ACT, tmp_path)
    codes, _, errors = ended(launchers.both(*words, "3=crash"))
    assert codes == [0, 0], errors
    assert "worker 3 failed 2 times" in errors[1]
    assert "worker 3 failed 2 times" not in errors[0]
    assert "restart 2 of 3 in 2 s, with 2 workers on this machine" in errors[0]
    assert "restart 2 of 3 in 2 s, with 1 worker on this machine" in errors[1]


def test_failure_ends_all_machines(launchers, tmp_path):
    orders = ("0=sleep", "1=raise", "2=sleep", "3=sleep")
    codes, _, errors = ended(launchers.both(ACT, tmp_path, *orders))
    assert codes == [1, 1], errors
    assert "fastnet: a worker failed on machine 0 (10.77.0.1), ending" in errors[1]
    error = "RuntimeError: rank 1 is broken"
    assert f"on machine 0 (10.77.0.1), worker 1 failed first: {error}" in errors[1]
    assert all(is_gone(pid) for pid in pids(tmp_path, 0, 1, 2, 3))


@pytest.mark.parametrize("host", [0, 1])
def test_interrupt_ends_all_machines(launchers, tmp_path, host):
    orders = [f"{rank}=sleep" for rank in range(4)]
    processes = launchers.both(ACT, tmp_path, *orders)
    workers = pids(tmp_path, 0, 1, 2, 3)
    processes[host].send_signal(signal.SIGINT)
    codes, _, errors = ended(processes)
    assert codes == [130, 130], errors
    assert f"SIGINT on machine {host} (10.77.0.{host + 1})" in errors[1 - host]
    assert all(is_gone(pid) for pid in workers)


@pytest.mark.parametrize("host", [0, 1])
def test_killed_launcher_ends_all_machines(launchers, tmp_path, host):
    orders = [f"{rank}=sleep" for rank in range(4)]
    processes = launchers.both(ACT, tmp_path, *orders)
    workers = pids(tmp_path, 0, 1, 2, 3)
    processes[host].kill()
    codes, _, errors = ended([processes[1 - host]])
    assert codes == [1]
    assert f"machine {host}" in errors[0]
    assert "has ended or cannot be reached, ending the workers" in errors[0]
    assert "Start `fastnet run` on all machines again" in errors[0]
    assert all(is_gone(pid) for pid in workers)


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 1])
def test_launcher_that_is_started_again_joins(launchers, tmp_path, host):
    words = ("--max-restarts", 2, ACT, tmp_path)
    orders = [f"{rank}=once sleep" for rank in range(4)]
    processes = launchers.both(*words, *orders)
    pids(tmp_path, 0, 1, 2, 3)
    processes[host].kill()
    again = launchers.start(host, *words, *orders)
    codes, _, errors = ended([processes[1 - host], again])
    assert codes == [0, 0], errors
    assert "start `fastnet run` there again within 300 s" in errors[0]
    assert "restart 1 of 2 in 1 s, with 2 workers on this machine" in errors[0]


def test_wrong_machines_are_told(launchers, tmp_path):
    """The launcher of machine 0 goes on, so that the mistake can be corrected."""
    restarts = ("--max-restarts", 1)
    token = {"FASTNET_TOKEN": "a token of one machine"}
    first = launchers.start(0, ACT, tmp_path)
    wrong = [
        (launchers.start(1, *restarts, ACT, tmp_path), "--max-restarts 1, version"),
        (launchers.start(1, ACT, tmp_path, nnodes=3), "--nnodes 3"),
        (launchers.start(1, ACT, tmp_path, **token), "the same FASTNET_TOKEN"),
    ]
    for process, words in wrong:
        codes, _, errors = ended([process])
        assert codes == [2], errors
        assert words in errors[0]
    codes, _, errors = ended([first, launchers.start(1, ACT, tmp_path)])
    assert codes == [0, 0], errors


@pytest.mark.slow
def test_all_machines_need_the_token(launchers, tmp_path):
    token, other = ({"FASTNET_TOKEN": f"{n:032d}"} for n in range(2))
    first = launchers.start(0, ACT, tmp_path, **token)
    for wrong in ({}, other):
        codes, _, errors = ended([launchers.start(1, ACT, tmp_path, **wrong)])
        assert codes == [2], errors
        assert "all machines must have the same FASTNET_TOKEN" in errors[0]
    codes, _, errors = ended([first, launchers.start(1, ACT, tmp_path, **token)])
    assert codes == [0, 0], errors


def test_port_of_the_rendezvous_that_is_in_use(launchers, tmp_path):
    first = launchers.start(0, ACT, tmp_path, "0=sleep")
    second = launchers.start(1, ACT, tmp_path, "2=sleep")
    pids(tmp_path, 0, 2)
    codes, _, errors = ended([launchers.start(0, ACT, tmp_path)])
    assert codes == [2]
    assert "--rendezvous HOST:PORT must name a free port of machine 0" in errors[0]
    first.send_signal(signal.SIGTERM)
    assert ended([first, second])[0] == [143, 143]


@pytest.mark.slow
def test_training_that_is_killed_ends_with_the_same_weights(launchers, tmp_path):
    words = ("--max-restarts", 3, TRAIN, tmp_path, "3:12:kill", "0:18:raise")
    processes = launchers.both(*words)
    codes, outputs, errors = ended(processes)
    assert codes == [0, 0], errors
    assert "resuming at epoch 2, batch 4, after 11 updates" in outputs[0]
    for rank in range(4):
        mine, whole = (
            np.load(tmp_path / f"{name}-{rank}.npz") for name in ("weights", "whole")
        )
        for name in whole.files:
            np.testing.assert_array_equal(mine[name], whole[name])


@pytest.mark.slow
def test_unplugged_machine_ends_the_others(launchers, tmp_path):
    orders = [f"{rank}=sleep" for rank in range(4)]
    processes = launchers.both(ACT, tmp_path, *orders)
    pids(tmp_path, 0, 1, 2, 3)
    launchers.network.cut(1)
    try:
        codes, _, errors = ended(processes)
    finally:
        launchers.network.mend(1)
    assert codes == [1, 1]
    assert "machine 1 (10.77.0.2) does not answer, ending the workers" in errors[0]
    assert "machine 0 does not answer, ending the workers" in errors[1]
