"""`fastnet run --max-restarts` and `--report`, in real processes."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.launcher.failure import WorkerEnd, find_failure
from keras_fastnet.launcher.restarts import Restarts, divided

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
ACT = SCRIPTS / "act.py"
TRAIN = SCRIPTS / "train_with_restarts.py"
BY_ITSELF = "the workers have told of no `keras_fastnet.callbacks.BackupAndRestore`"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def run(fastnet, tmp_path):
    """Runs `fastnet run` with a report; returns what it did, and the report."""

    def run(workers, restarts, script, *orders, options=(), **variables):
        path = tmp_path / "report.json"
        words = ("--workers", workers, "--max-restarts", restarts, "--report", path)
        done = fastnet("run", *words, *options, script, tmp_path, *orders, **variables)
        return done, json.loads(path.read_text())

    return run


@pytest.mark.distributed
@pytest.mark.smoke
def test_workers_start_again_after_one_is_killed(run, tmp_path):
    logs = tmp_path / "logs"
    orders = ("0=", "1=once crash")
    done, report = run(2, 3, ACT, *orders, options=("--log-dir", logs))
    assert done.returncode == 0, done.stderr
    assert "worker 1 failed first: killed by SIGKILL" in done.stderr
    assert "restart 1 of 3 in 1 s, with 2 workers, from the beginning" in done.stderr
    assert done.stderr.count(BY_ITSELF) == 1
    log = (logs / "rank-0.log").read_text().splitlines()
    assert log[0] == log[2] == "rank 0 says hello"
    assert log[1].startswith("fastnet: restart 1 of 3")
    assert report["outcome"] == "succeeded"
    assert (report["exit_code"], report["restarts"]) == (0, 1)
    first, second = report["starts"]
    assert first["failure"]["rank"] == 1
    assert first["failure"]["reason"] == "killed by SIGKILL"
    killed = first["workers_at_end"][1]
    assert (killed["exit_code"], killed["signal"]) == (None, "SIGKILL")
    assert killed["last_lines"] == ["rank 1 says hello"]
    assert second["failure"] is None
    assert [worker["exit_code"] for worker in second["workers_at_end"]] == [0, 0]


@pytest.mark.distributed
def test_error_that_comes_again_is_not_retried(run):
    done, report = run(2, 9, ACT, "0=sleep", "1=raise")
    assert done.returncode == 1
    error = "RuntimeError: rank 1 is broken"
    refusal = f"`{error}` came a second time (without a backup in between)"
    assert f"fastnet: not restarted: {refusal}" in done.stderr
    assert (report["outcome"], report["restarts"]) == ("failed", 1)
    assert report["not_restarted"].startswith(refusal)


@pytest.mark.distributed
def test_restarts_are_limited(run):
    done, report = run(2, 2, ACT, "1=crash")
    assert done.returncode == 128 + signal.SIGKILL
    assert "restart 2 of 2 in 2 s" in done.stderr
    assert "not restarted: --max-restarts allows 2 restarts" in done.stderr
    assert done.stderr.count(BY_ITSELF) == 1
    assert len(report["starts"]) == 3


@pytest.mark.distributed
def test_worker_that_keeps_dying_is_left_out(run):
    options = ("--min-workers", 2, "--all-output")
    done, report = run(3, 5, ACT, "2=crash", options=options)
    assert done.returncode == 0, done.stderr
    assert "worker 2 failed 2 times without a new backup in between" in done.stderr
    assert "restart 2 of 5 in 2 s, with 2 workers" in done.stderr
    assert [start["slots"] for start in report["starts"]] == [[0, 1, 2]] * 2 + [[0, 1]]


@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_the_pause_ends_everything(start, tmp_path, number):
    with reserved_ports(2) as ports:
        base = min(ports)
    report = tmp_path / "report.json"
    words = ("--max-restarts", 9, "--report", report, "--port", base)
    process = start("--workers", 1, *words, ACT, tmp_path, "0=crash")
    while b"restart 2 of 9 in 2 s" not in process.stderr.readline():
        pass
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    content = json.loads(report.read_text())
    assert content["outcome"] == f"ended by {signal.Signals(number).name}"
    assert len(content["starts"]) == 2
    with reserved_ports(1, base):
        pass


def end(slot=0, code=-signal.SIGKILL, *, error=None, at=0.0, **others):
    events = []
    if error is not None:
        kind, message = error
        events = [
            {"kind": "position", "time": at, "text": "epoch 2, step 3"},
            {"kind": "error", "time": at, "type": kind, "message": message},
        ]
    settings = {"lines": [], "last_error": None, "events": events, "doing": None}
    settings |= {"unseen": [], "exception": "", "raised_at": None}
    return WorkerEnd(rank=slot, slot=slot, exit_code=code, **{**settings, **others})


def failure(*ends, suspended=()):
    ends = ends or (end(),)
    return find_failure(ends, ends[0].rank, 10.0, suspended)


def backup(updates):
    event = {"file": "f", "epoch": 0, "batch": updates, "updates": updates}
    return end(events=[{"kind": "backup", "time": 0.0, "backup": event}])


def test_pauses_grow_until_there_is_a_new_backup():
    restarts = Restarts(2, allowed=20, least=1)
    pauses = []
    for updates in (1, 1, 1, 2, 2, *[2] * 6):
        restarts.learn([backup(updates)])
        restarts.slots = [0, 1]
        assert restarts.refusal(failure().cause) is None
        pauses.append(restarts.pause)
    assert pauses == [1, 2, 4, 1, 2, 4, 8, 16, 30, 30, 30]


def test_slot_is_kept_while_there_are_new_backups():
    restarts = Restarts(3, allowed=20, least=1)
    for updates in range(5):
        restarts.learn([backup(updates)])
        assert restarts.refusal(failure().cause) is None
    assert restarts.slots == [0, 1, 2]
    assert restarts.refusal(failure(end(2)).cause) is None
    assert restarts.slots == [0, 1, 2]
    # Slot 0 has failed at this backup before.
    assert restarts.refusal(failure(end(0)).cause) is None
    assert restarts.slots == [1, 2]


def test_slots_that_were_left_out_come_back():
    restarts = Restarts(3, allowed=20, least=1, most=4)
    for _ in range(2):
        assert restarts.refusal(failure(end(0)).cause) is None
    assert restarts.slots == [1, 2]
    restarts.resize(4)
    assert restarts.slots == [0, 1, 2, 3]
    assert "continuing with 4 workers" in restarts.notes[0]
    # Its earlier failures are forgotten.
    assert restarts.refusal(failure(end(0)).cause) is None
    assert restarts.slots == [0, 1, 2, 3]
    restarts.resize(1)
    assert restarts.slots == [0]


@given(st.data())
def test_machines_share_what_is_asked_for(data):
    machine = st.tuples(*[st.integers(1, 9)] * 3).map(sorted)
    drawn = data.draw(st.lists(machine, min_size=1, max_size=4))
    machines = [
        dict(zip(("least", "workers", "most"), numbers, strict=True))
        for numbers in drawn
    ]
    lowest, now, highest = map(sum, zip(*drawn, strict=True))
    workers = data.draw(st.integers(lowest, highest))
    shares = divided(workers, machines)
    assert sum(shares) == workers
    for share, (least, own, most) in zip(shares, drawn, strict=True):
        assert least <= share <= most
        assert share <= own if workers <= now else share >= own


def test_same_exception_at_another_update_is_retried():
    restarts = Restarts(1, allowed=20, least=1)
    one = end(0, 1, error=("ValueError", "bad <x at 0x7f3a>"))
    two = end(0, 1, error=("ValueError", "bad <x at 0x51c0>"))
    other = {"kind": "position", "time": 0.0, "text": "epoch 3, step 1"}
    third = end(0, 1, events=[other, one.events[1]])
    assert restarts.refusal(failure(one).cause) is None
    assert restarts.refusal(failure(third).cause) is None
    refusal = restarts.refusal(failure(two).cause)
    assert "`ValueError: bad <x at 0x51c0>` came a second time (epoch 2, step 3)" in (
        refusal
    )


@pytest.mark.parametrize(
    ("code", "refused"), [(-signal.SIGSEGV, True), (-signal.SIGTERM, False)]
)
def test_crash_without_a_new_backup_in_between(code, refused):
    restarts = Restarts(1, allowed=20, least=1)
    for updates in (1, 2):
        restarts.learn([backup(updates)])
        assert restarts.refusal(failure(end(0, code)).cause) is None
    assert bool(restarts.refusal(failure(end(0, code)).cause)) is refused


def test_cause_is_the_worker_that_the_others_waited_for():
    late = end(0, 1, error=("ClusterError", "rank 1 does not answer"), at=3.0)
    cause = end(1, 1, error=("ValueError", "bad"), at=2.0)
    later = end(2, 1, error=("KeyError", "1"), at=11.0)
    assert failure(late, cause, later).worker is cause
    # As MPI ends its other ranks.
    assert failure(end(0, 15), cause).worker is cause
    assert failure(end(0, -9), later).worker.rank == 0
    assert failure(late, end(1, -9), suspended=(1,)).reason == "suspended"


@pytest.mark.distributed
def test_training_that_is_killed_ends_with_the_same_weights(run, tmp_path):
    options = ("--grace-seconds", 1)
    done, report = run(2, 3, TRAIN, "1:12:kill", options=options)
    assert done.returncode == 0, done.stderr
    check_weights(tmp_path, 2, exactly=True)
    check_epochs(tmp_path)
    first, second = report["starts"]
    assert first["resumed_from"] is None
    used = second["resumed_from"]
    assert used == first["last_backup"]
    # The callback that kills comes before the one that backs up.
    assert (used["epoch"], used["batch"], used["updates"]) == (1, 3, 11)
    assert f"restart 1 of 3 in 1 s, with 2 workers, from {used['file']}" in done.stderr
    assert "resuming at epoch 2, batch 4, after 11 updates" in done.stdout


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tensorflow", "mpi"])
def test_exception_is_retried_once(run, tmp_path, transport):
    options = ("--transport", transport)
    orders = ("0:3:raise", "1:12:always-raise")
    done, report = run(2, 9, TRAIN, *orders, options=options)
    assert done.returncode != 0
    assert "worker 0 failed first" in done.stderr
    assert "restart 2 of 9" in done.stderr
    assert (
        "not restarted: `RuntimeError: no data` came a second time (epoch 2, callbacks "
        "or data after step 4), and would come again"
    ) in done.stderr
    failures = [start["failure"] for start in report["starts"]]
    assert [f["rank"] for f in failures] == [0, 1, 1]
    assert failures[2]["exception"] == {"type": "RuntimeError", "message": "no data"}


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tensorflow", "mpi"])
def test_suspended_worker_is_replaced(run, tmp_path, transport):
    done, report = run(2, 3, TRAIN, "1:12:stop", options=("--transport", transport))
    assert done.returncode == 0, done.stderr
    check_weights(tmp_path, 2, exactly=True)
    check_epochs(tmp_path)
    found = report["starts"][0]["failure"]
    assert (found["rank"], found["reason"]) == (1, "suspended")
    assert "rank 1 does not answer" in found["others_found"]
    assert found["suspended"] == [1]
    assert report["starts"][0]["workers_at_end"][1]["signal"] == "SIGKILL"


@pytest.mark.distributed
@pytest.mark.slow
def test_crash_of_the_program_is_not_retried_again(run):
    done, report = run(2, 9, TRAIN, "1:12:always-abort")
    assert done.returncode == 128 + signal.SIGABRT
    assert "`killed by SIGABRT` came a second time (after 11 updates)" in done.stderr
    assert report["restarts"] == 1


@pytest.mark.distributed
@pytest.mark.slow
def test_training_continues_with_fewer_workers(run, tmp_path):
    """The global batch, its growth, the rate and the data stay."""
    options = ("--min-workers", 2)
    orders = ("grow", "2:6:always-kill")
    done, report = run(3, 5, TRAIN, *orders, options=options)
    assert done.returncode == 0, done.stderr
    assert [start["workers"] for start in report["starts"]] == [3, 3, 2]
    used = report["starts"][2]["resumed_from"]
    assert (used["epoch"], used["batch"], used["updates"]) == (1, 4, 5)
    # At most 16 examples for a replica.
    assert "epoch 2: global batch 48 = 1 x 48 (global micro-batch)" in done.stdout
    assert "epoch 2: global batch 48 = 2 x 24 (global micro-batch)" in done.stdout
    check_weights(tmp_path, 2, exactly=False)
    check_epochs(tmp_path)


def check_weights(folder, workers, *, exactly):
    """Compares with a training that nothing interrupted."""
    for rank in range(workers):
        mine, whole = (
            np.load(folder / f"{name}-{rank}.npz") for name in ("weights", "whole")
        )
        for name in whole.files:
            if exactly:
                np.testing.assert_array_equal(mine[name], whole[name])
            else:
                np.testing.assert_allclose(
                    mine[name], whole[name], rtol=1e-4, atol=1e-5
                )


def check_epochs(folder):
    """Checks that each epoch has seen each example once."""
    numbers = np.arange(96.0)
    lines = [json.loads(line) for line in (folder / "epochs").read_text().splitlines()]
    assert [epoch for epoch, _ in lines] == [0, 1, 2]
    for _, seen in lines:
        np.testing.assert_allclose(seen["number"], numbers.mean(), rtol=1e-5)
        np.testing.assert_allclose(
            seen["wave"], np.sin(7.0 * numbers).mean(), atol=1e-4
        )
