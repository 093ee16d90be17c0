"""`fastnet run` without workers: environments, ports, GPUs, failures, errors."""

import importlib.util
import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet import __version__
from keras_fastnet.cli import main
from keras_fastnet.cluster.gpus import divide_gpus
from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.failure import find_failure, last_lines
from keras_fastnet.launcher.machine import parse_listing, parse_visible_devices
from keras_fastnet.launcher.mpiexec import mpi_is_installed
from keras_fastnet.launcher.worker_environment import worker_environments
from keras_fastnet.launcher.worker_process import WorkerProcess


def failure(tmp_path, *ends, suspended=()):
    """Returns the failure of workers that ended so; the first one ended at 10.0."""
    workers, files = [], []
    for rank, (code, *error) in enumerate(ends):
        worker = object.__new__(WorkerProcess)
        worker.rank, worker.exit_code = rank, code
        workers.append(worker)
        files.append(tmp_path / str(rank))
        if error:
            text, at, updates = error
            record = {"error": text, "traceback": "", "time": at, "updates": updates}
            files[-1].write_text(json.dumps(record))
    return find_failure(workers, files, workers[0], 10.0, suspended)


def test_the_cause_is_the_worker_that_the_others_waited_for(tmp_path):
    waiting = (1, "ClusterError: rank 1 does not answer", 3.0, 5)
    cause = (1, "ValueError: bad", 2.0, 5)
    later = (1, "KeyError: 1", 11.0, 5)
    assert failure(tmp_path / "", waiting, cause, later).rank == 1
    # As MPI ends its other ranks.
    assert failure(tmp_path, (15,), cause).rank == 1


def test_a_killed_worker_comes_before_errors_that_follow(tmp_path):
    found = failure(tmp_path, (-9,), (1, "KeyError: 1", 11.0, 5))
    assert (found.rank, found.launch_code) == (0, 137)
    assert found.repeatable is None


def test_suspended_workers_are_named(tmp_path):
    waiting = (1, "ClusterError: rank 1 does not answer", 3.0, 5)
    found = failure(tmp_path, waiting, (-9,), suspended=(1,))
    assert found.heading.startswith("worker 1 was suspended, as by SIGSTOP")


def test_an_error_is_the_same_at_the_same_update_only(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    errors = [("bad <x at 0x7f3a>", 3), ("bad <x at 0x51c0>", 3), ("bad <x at 0x1>", 4)]
    found = []
    for folder, (text, updates) in zip(folders, errors, strict=True):
        folder.mkdir()
        found.append(failure(folder, (1, f"ValueError: {text}", 1.0, updates)))
    first, second, third = (each.repeatable for each in found)
    assert first == second != third
    assert "a second time after 3 updates" in found[0].repetition()


def test_last_lines_have_bars_in_their_final_state(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 30 + b"1/2 \b\b\b\r2/2 done\n\nend \xff\r\n")
    lines = last_lines(path)
    assert len(lines) == 20
    assert lines[-3:] == ["x", "2/2 done", "end \ufffd"]


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 8))
def test_gpus_are_divided_in_contiguous_blocks(workers, each, spare):
    names = [str(index) for index in range(workers * each)]
    blocks = divide_gpus(names, workers)
    if not names:
        assert blocks is None
        return
    assert [name for block in blocks for name in block] == names
    assert {len(block) for block in blocks} == {each}
    more = [*names, *(f"spare{index}" for index in range(spare))]
    assert divide_gpus(more, workers, each) == blocks


@pytest.mark.parametrize(("per_worker", "word"), [(None, "multiple"), (2, "exceed")])
def test_gpus_that_cannot_be_divided_raise(per_worker, word):
    with pytest.raises(UsageError, match=f"{word}.*Received: .*3"):
        divide_gpus(["0", "1", "2"], 2, per_worker)


def test_environment_of_the_workers():
    first, second = worker_environments([7, 8], {}, cpus=5, gpus=["3", "GPU-a"])
    cluster = {"worker": ["127.0.0.1:7", "127.0.0.1:8"]}
    task = {"type": "worker", "index": 1}
    assert json.loads(second.pop("TF_CONFIG")) == {"cluster": cluster, "task": task}
    assert first["CUDA_VISIBLE_DEVICES"] == "3"
    assert second == {
        "PYTHONUNBUFFERED": "1",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "2",
        "OMP_NUM_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-a",
    }


def test_workers_of_one_cpu_can_communicate_while_they_compute():
    (worker,) = worker_environments([7], {}, cpus=1)
    assert worker["TF_NUM_INTRAOP_THREADS"] == "1"
    assert worker["TF_NUM_INTEROP_THREADS"] == "2"
    (worker,) = worker_environments([7], {}, cpus=1, threads_per_worker=1)
    assert worker["TF_NUM_INTEROP_THREADS"] == "1"


def test_users_environment_is_kept():
    mine = {"OMP_NUM_THREADS": "9", "TF_CPP_MIN_LOG_LEVEL": "3"}
    (worker,) = worker_environments([7], mine, cpus=4)
    assert not mine.keys() & worker.keys()
    (worker,) = worker_environments([7], mine, cpus=4, threads_per_worker=3)
    assert worker["OMP_NUM_THREADS"] == "3"


def test_gpus_are_hidden_on_request():
    (worker,) = worker_environments([7], {}, cpus=1, gpus=["0"], gpus_per_worker=0)
    assert worker["CUDA_VISIBLE_DEVICES"] == "-1"


def test_gpu_lists_are_read():
    assert parse_visible_devices("2, GPU-ab,-1,3") == ["2", "GPU-ab"]
    assert parse_visible_devices("") == parse_visible_devices("NoDevFiles") == []
    listing = "GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n"
    assert parse_listing(listing) == ["0", "1"]


def test_reserved_port_can_be_listened_on_by_a_worker_only():
    with reserved_ports(2) as ports:
        assert len(set(ports)) == 2
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("127.0.0.1", ports[0]))
        with pytest.raises(UsageError, match=str(ports[1])):
            reserved_ports(1, ports[1]).__enter__()
        with socket.socket(socket.AF_INET6) as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            worker.bind(("::", ports[0]))
            worker.listen()


def test_port_of_a_connection_from_another_address_is_not_free():
    # Like a download by pip: the port is free on 127.0.0.1, but not for a worker.
    with (
        socket.create_server(("127.0.0.2", 0)) as server,
        socket.create_connection(
            server.getsockname(), source_address=("127.0.0.2", 0)
        ) as connection,
    ):
        port = connection.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}, which cannot be bound"):
            reserved_ports(1, port).__enter__()


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "script.py"
    path.write_text("import pathlib; pathlib.Path('started').touch()")
    monkeypatch.chdir(tmp_path)
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 0 S", "integer >= 1. Received: 0"),
        ("S --workers 2", "Received: it after the script"),
        ("S -n 2", "Received: it after the script"),
        ("--workers 2", "a script or a module"),
        ("--workers 2 -m", "a script or a module"),
        ("--workers 2 missing.py", "Received: missing.py (no such file"),
        ("--workers 2 .", "(a directory"),
        ("--workers 2 --port 65535 S", "Received: 65535"),
        ("--workers 2 --threads-per-worker 0 S", "--threads-per-worker"),
        ("--workers 2 --gpus-per-worker 1 S", "0 visible GPUs"),
        ("--workers 2 --log-dir S/logs S", "--log-dir must be a writable directory"),
        ("--workers 2 --max-restarts -1 S", "integer >= 0. Received: -1"),
        ("--hosts a:2,b S", "Received: 'a:2,b'. Pass, for example, a:4,b:4"),
        ("--hosts user@a:2 S", "must be addresses of machines"),
        ("--hosts a:2,b:2 S", "from 0 to 1. Received: None"),
        ("--hosts a:2,b:2 --node-rank 2 S", "from 0 to 1. Received: 2"),
        ("--hosts a:2,b:2 --node-rank 1 --workers 2 S", "Leave --workers out"),
        ("--hosts a:2,b:2 --node-rank 1 --max-restarts 2 S", "Leave --max-restarts"),
        ("--node-rank 1 --workers 2 S", "no --hosts"),
    ],
)
def test_invalid_options_are_errors(script, capsys, words, message):
    arguments = words.replace("S", script).split()
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.splitlines()) == 1
    assert not os.path.exists("started")


def test_busy_port_is_named(script, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        base = str(port - 1)
        assert main(["run", "--workers", "2", "--port", base, script]) == 2
    error = capsys.readouterr().err
    # Another program may use the port below at this moment.
    assert f"port {port}" in error or f"port {port - 1}" in error


def test_cluster_within_a_cluster_is_an_error(script, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    assert main(["run", "--workers", "2", script]) == 2
    assert "unset TF_CONFIG" in capsys.readouterr().err


def test_dry_run_starts_nothing(script, capsys):
    words = ["--workers", "2", "--dry-run", "--log-dir", "logs"]
    assert main(["run", *words, "python3", script, "a b"]) == 0
    printed = capsys.readouterr().out
    assert '"index": 1}' in printed
    assert f"{sys.executable} {script} 'a b'\n" in printed
    assert not os.path.exists("logs") and not os.path.exists("started")


def test_machines_compute_the_same_addresses(script, capsys):
    for rank, first in ((0, 0), (1, 2)):
        words = ["--hosts", "a:2,[fd00::1]:1", "--node-rank", str(rank)]
        assert main(["run", *words, "--port", "20500", "--dry-run", script]) == 0
        printed = capsys.readouterr().out
        workers = '{"worker": ["a:20500", "a:20501", "[fd00::1]:20500"]}'
        assert f'{workers}, "task": {{"type": "worker", "index": {first}}}' in printed


@pytest.mark.parametrize(
    ("workers", "options", "environment", "mpi"),
    [
        (2, {}, {}, True),
        (
            2,
            {"placement": launcher.Placement(gpus_per_worker=0)},
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            True,
        ),
        (2, {}, {"CUDA_VISIBLE_DEVICES": "0,1"}, False),
        (1, {}, {}, False),
        (2, {"independent": True}, {}, False),
        (2, {"transport": "tensorflow"}, {}, False),
        # The launcher is itself a process of MPI.
        (2, {}, {"PMI_RANK": "0"}, False),
    ],
)
def test_workers_on_cpus_are_ranks_of_mpi(workers, options, environment, mpi, script):
    pytest.importorskip("mpi4py")
    environment = {"CUDA_VISIBLE_DEVICES": "", **environment}
    text = launcher.describe(workers, [script], environment=environment, **options)
    assert ("mpiexec" in text) is mpi


def test_another_mpi_library_is_not_taken_unasked(script, monkeypatch):
    pytest.importorskip("mpi4py")
    assert mpi_is_installed()
    # mpi4py without MPICH's wheel beside it.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "-packages" not in p])
    assert importlib.util.find_spec("mpi4py") is not None
    assert "mpiexec" not in launcher.describe(2, [script])
    assert "mpiexec" in launcher.describe(2, [script], transport="mpi")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_has_examples(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert __version__ in text if "--version" in words else "examples:" in text


def test_command_does_not_import_tensorflow():
    code = (
        "import sys, keras_fastnet.cli as cli\n"
        "cli.main(['run', '--workers', '1', '--dry-run', '-m', 'keras.nothing'])\n"
        "print(sorted({'keras', 'numpy', 'tensorflow'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.stdout.endswith("[]\n"), result.stderr
