"""`fastnet run` with real processes."""

import functools
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from keras_fastnet.launcher import launcher

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
ACT = str(SCRIPTS / "act.py")
PATIENCE = 120.0  # against hangs only

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture
def fastnet(fastnet):
    return functools.partial(fastnet, "run")


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def pids(directory, *names):
    paths = [directory / f"{name}.pid" for name in names]
    wait_until(lambda: all(path.exists() for path in paths), "workers start")
    return [int(path.read_text()) for path in paths]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def is_gone(pid):
    return state(pid) in ("gone", "Z", "X")


@pytest.mark.smoke
def test_success_shows_rank_0_only(fastnet, tmp_path):
    result = fastnet("--workers", 3, ACT, tmp_path)
    assert result.returncode == 0
    assert result.stdout == "[0] rank 0 says hello\n"
    assert result.stderr == ""


def test_all_output_shows_every_rank(fastnet, tmp_path):
    result = fastnet("--workers", 3, "--all-output", ACT, tmp_path)
    expected = {f"[{rank}] rank {rank} says hello" for rank in range(3)}
    assert set(result.stdout.splitlines()) == expected


@pytest.mark.smoke
def test_failure_names_the_rank_and_ends_the_others(fastnet, tmp_path):
    result = fastnet("--workers", 3, ACT, tmp_path, "0=sleep", "1=raise", "2=sleep")
    assert result.returncode == 1
    report = result.stderr.partition("fastnet: worker 1 failed first: exit code 1")[2]
    assert "[1] RuntimeError: rank 1 is broken\n" in report
    assert "[1] rank 1 says hello\n" in report
    assert result.stderr.count("Traceback") == 1
    assert all(is_gone(pid) for pid in pids(tmp_path, 0, 1, 2))


def test_one_traceback_of_workers_that_fail_alike(fastnet, tmp_path):
    orders = ("0=deaf raise", "1=deaf raise", "2=deaf raise")
    result = fastnet("--workers", 3, "--log-dir", tmp_path, ACT, tmp_path, *orders)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    first = re.search(r"worker (\d) failed first: exit code 1", result.stderr)[1]
    assert f"[{first}] RuntimeError: rank {first} is broken\n" in result.stderr
    # SIGTERM does not keep the others from raising their own errors.
    for rank in {"0", "1", "2"} - {first}:
        line = f"fastnet: worker {rank} failed too: RuntimeError: rank {rank} is broken"
        assert f"{line}\n" in result.stderr
    log = (tmp_path / "rank-0.log").read_text()
    assert "Traceback" in log and "fastnet: " not in log


def test_traceback_of_a_worker_that_does_not_end_is_shown(start, tmp_path):
    process = start("--workers", 2, ACT, tmp_path, "0=sleep", "1=linger")
    while b"[1] RuntimeError: rank 1 is broken" not in process.stderr.readline():
        assert process.poll() is None


def test_lines_of_tensorflow_are_shown_on_request_only(fastnet, tmp_path):
    (tmp_path / "warn").touch()
    words = ("--workers", 1, ACT, tmp_path, "0=warn")
    assert fastnet(*words).stderr == "[0] careful\n"
    assert "tensorflow/x.cc:1] note\n" in fastnet("--tf-logs", *words).stderr


def test_fatal_signal_is_named_and_workers_that_ignore_sigterm_are_killed(
    fastnet, tmp_path
):
    orders = ("0=deaf sleep", "1=crash")
    result = fastnet("--workers", 2, "--grace-seconds", 0.2, ACT, tmp_path, *orders)
    assert result.returncode == 128 + signal.SIGKILL
    assert "worker 1 failed first: killed by SIGKILL" in result.stderr
    assert all(is_gone(pid) for pid in pids(tmp_path, 0, 1))


def test_first_failure_is_named_even_when_the_launcher_wakes_late(start, tmp_path):
    orders = [f"{rank}=fail-when-told" for rank in range(3)]
    process = start("--workers", 3, ACT, tmp_path, *orders)
    workers = pids(tmp_path, 0, 1, 2)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(process.pid) == "T", "launcher stops")
    for rank in (2, 0, 1):
        (tmp_path / f"fail-{rank}").touch()
        wait_until(lambda pid=workers[rank]: is_gone(pid), "worker ends")
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 42
    assert b"worker 2 failed first: exit code 42" in errors


def test_worker_that_exits_early_with_0_is_not_a_failure(start, tmp_path):
    process = start("--workers", 2, ACT, tmp_path, "0=sleep", "1=parent")
    sleeping, ended, child = pids(tmp_path, 0, 1, "1-child")
    wait_until(lambda: is_gone(ended) and is_gone(child), "worker 1 ends")
    assert process.poll() is None
    assert not is_gone(sleeping)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_launcher_ends_everything(start, tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("ignored here, as under nohup, which the launcher heeds")
    process = start("--workers", 2, ACT, tmp_path, "0=parent sleep", "1=sleep")
    workers = pids(tmp_path, 0, 1, "0-child")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert all(is_gone(pid) for pid in workers)


def test_second_signal_kills_workers_without_a_grace_period(start, tmp_path):
    words = ("--workers", 1, "--grace-seconds", 600)
    process = start(*words, ACT, tmp_path, "0=deaf sleep")
    (worker,) = pids(tmp_path, 0)
    process.send_signal(signal.SIGINT)
    while b"SIGINT, ending the workers" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 130
    assert is_gone(worker)


def test_workers_die_with_a_killed_launcher(start, tmp_path):
    process = start("--workers", 2, ACT, tmp_path, "0=deaf sleep", "1=sleep")
    workers = pids(tmp_path, 0, 1)
    process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in workers), "workers die")


def test_closed_stdout_ends_everything(start, tmp_path):
    process = start("--workers", 1, ACT, tmp_path, "0=warn bar sleep")
    (worker,) = pids(tmp_path, 0)
    process.stdout.close()
    (tmp_path / "warn").touch()
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE
    assert is_gone(worker)


def test_log_directory_has_the_whole_output_of_each_worker(fastnet, tmp_path):
    (tmp_path / "warn").touch()
    logs = tmp_path / "new" / "logs"
    orders = ("1=warn bar unended",)
    result = fastnet("--workers", 2, "--log-dir", logs, ACT, tmp_path, *orders)
    assert result.stderr == "[1] careful\n"
    assert (logs / "rank-0.log").read_text() == "rank 0 says hello\n"
    log = (logs / "rank-1.log").read_text()
    for line in ("rank 1 says hello", "careful", "2/2 ━━"):
        assert f"{line}\n" in log
    assert "tensorflow/x.cc:1] note\n" in log
    assert log.count("x") == 200_001
    assert log.endswith("the end\n")


def test_full_log_disk_does_not_end_training(fastnet, tmp_path):
    (tmp_path / "warn").touch()
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-1.log").symlink_to("/dev/full")
    orders = ("1=warn bar unended",)
    result = fastnet("--workers", 2, "--log-dir", logs, ACT, tmp_path, *orders)
    assert result.returncode == 0
    ends = "fastnet: the log of worker 1 cannot be written (No space left on device)"
    assert result.stderr.count(ends) == 1
    assert "[1] careful" in result.stderr
    assert (logs / "rank-0.log").read_text() == "rank 0 says hello\n"


def test_full_disk_for_stdout_does_not_end_training(start, tmp_path):
    (tmp_path / "warn").touch()
    with open("/dev/full", "w") as full:
        process = start("--workers", 2, ACT, tmp_path, "1=warn bar", stdout=full)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    ends = b"fastnet: stdout cannot be written (No space left on device)"
    assert errors.count(ends) == 1
    assert b"[1] careful" in errors


def test_workers_get_the_same_secret_token(fastnet, tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import os, pathlib\n"
        "token = os.environ['FASTNET_TOKEN']\n"
        "commands = [f'/proc/{p}/cmdline' for p in (os.getpid(), os.getppid())]\n"
        "assert not any(token in pathlib.Path(c).read_text() for c in commands)\n"
        f"file = pathlib.Path({str(tmp_path)!r}, str(os.getpid()))\n"
        "file.with_suffix('.token').write_text(token)\n"
    )
    logs = tmp_path / "logs"
    words = ("--workers", 2, "--log-dir", logs, "--all-output", script)
    result = fastnet(*words)
    assert result.returncode == 0, result.stderr
    first, second = (p.read_text() for p in tmp_path.glob("*.token"))
    assert first == second and len(first) == 64
    shown = fastnet("--dry-run", *words).stdout + result.stdout + result.stderr
    shown += "".join(log.read_text() for log in logs.iterdir())
    assert first not in shown and "FASTNET_TOKEN" not in shown
    own = "a token of the user's"
    assert fastnet(*words, FASTNET_TOKEN=own).returncode == 0
    assert own in {p.read_text() for p in tmp_path.glob("*.token")}


def test_pipe_shows_only_the_final_state_of_the_bar(fastnet, tmp_path):
    result = fastnet("--workers", 2, ACT, tmp_path, "0=bar", "1=bar")
    assert result.stdout == "[0] rank 0 says hello\n[0] 2/2 ━━\n"


def test_terminal_redraws_the_bar_around_a_warning(start, tmp_path):
    ours, theirs = pty.openpty()
    ends = {"stdout": theirs, "stderr": theirs}
    process = start("--workers", 2, ACT, tmp_path, "0=slow bar", "1=warn", **ends)
    os.close(theirs)
    seen = b""

    def read_until(text):
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 4096)

    bar = b"[0] 1/2 \x1b[32m" + "━".encode() + b"\x1b[0m"
    read_until(bar)
    (tmp_path / "warn").touch()
    read_until(b"\r\x1b[K[1] careful\r\n" + bar)
    (tmp_path / "go-on").touch()
    read_until(b"\r\x1b[K[0] 2/2 \x1b[32m" + "━━".encode() + b"\x1b[0m\r\n")
    assert process.wait(timeout=PATIENCE) == 0
    os.close(ours)


def test_module_is_run_with_its_own_options(fastnet, tmp_path):
    words = ("--workers", 1, "-m", "json.tool", "--sort-keys", "--workers")
    result = fastnet(*words)
    assert result.returncode == 2
    assert "[0] " in result.stderr and "unrecognized arguments: --w" in result.stderr


def test_script_finds_the_argv_path_and_name_that_python_sets(fastnet, tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys\n"
        "print(sys.argv, sys.path[0], __name__, os.environ['OMP_NUM_THREADS'])\n"
    )
    result = fastnet("--workers", 1, script, "--workers", "7", OMP_NUM_THREADS="5")
    argv = [str(script), "--workers", "7"]
    assert result.stdout == f"[0] {argv} {tmp_path} __main__ 5\n"


def test_exit_is_noticed_without_pidfd(monkeypatch, tmp_path, capsys, environment):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    command = [ACT, str(tmp_path), "0=sleep", "1=raise"]
    assert launcher.run(2, command, environment=environment) == 1
    captured = capsys.readouterr()
    assert "worker 1 failed first: exit code 1" in captured.err


@pytest.mark.distributed
def test_tensorflow_workers_form_a_cluster(fastnet):
    result = fastnet("--workers", 2, SCRIPTS / "reduce_over_workers.py")
    assert result.returncode == 0, result.stderr
    bar, replicas = result.stdout.splitlines()
    assert bar.startswith("[0] 20/20 ") and "sum: 2.0000" in bar
    assert replicas == "[0] replicas 2 sum 4.0"
