"""`fastnet run` without workers: lines, environments, ports, GPUs, errors."""

import importlib.util
import io
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
from keras_fastnet.launcher.line_editor import LONGEST_LINE, LineEditor
from keras_fastnet.launcher.machine import parse_listing, parse_visible_devices
from keras_fastnet.launcher.mpiexec import mpi_is_installed
from keras_fastnet.launcher.output import (
    Display,
    WorkerOutput,
    is_information,
    is_of_start_up,
)
from keras_fastnet.launcher.worker_environment import worker_environments

PIECES = st.sampled_from(
    [*"ab é━\t\n\r\b\x1b[m(K2;", "\x1b[32m", "\x1b[0m", "\x1b[K", "\x1b[2K", "\x07"]
)
TEXTS = st.lists(PIECES).map("".join)


def lines_of(editor, pieces):
    lines = [line for piece in pieces for line in editor.feed(piece)]
    return lines + editor.finish()


@given(TEXTS, st.data())
def test_lines_do_not_depend_on_how_text_is_cut(text, data):
    pieces, rest = [], text
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert lines_of(LineEditor(), pieces) == lines_of(LineEditor(), [text])


@given(st.text(alphabet="abc \n\r\b"))
def test_lines_equal_those_of_a_terminal(text):
    expected = []
    for row in text.split("\n"):
        screen, cursor = {}, 0
        for character in row:
            if character == "\r":
                cursor = 0
            elif character == "\b":
                cursor = max(0, cursor - 1)
            else:
                screen[cursor] = character
                cursor += 1
        expected.append("".join(screen[i] for i in sorted(screen)).rstrip(" "))
    lines = [line.plain.rstrip(" ") for line in lines_of(LineEditor(), [text])]
    assert lines == (expected if lines[len(expected) - 1 :] else expected[:-1])


@given(st.text(), st.binary(), st.data())
def test_bytes_may_be_cut_anywhere_and_need_not_be_text(text, binary, data):
    written = text.encode(errors="replace") + binary + b"\nend"
    cut = data.draw(st.integers(1, len(written) - 1))
    logs = []
    for pieces in ([written], [written[:cut], written[cut:]]):
        out, log = io.StringIO(), io.StringIO()
        output = WorkerOutput(0, Display(out, io.StringIO()), log=log)
        for piece in [*pieces, b""]:
            output.feed("stdout", piece)
        shown = [line.removeprefix("[0] ") for line in out.getvalue().split("\n")]
        assert shown == log.getvalue().split("\n")
        assert shown[-2:] == ["end", ""]
        logs.append(log.getvalue())
    assert logs[0] == logs[1]


def test_shorter_state_of_a_bar_is_padded_invisibly():
    (line,) = LineEditor().feed("1/9 12s left\b\b\b\r9/9 0s      \n")
    assert (line.plain, line.redrawn) == ("9/9 0s", True)


def test_windows_line_end_is_not_a_redraw():
    (line,) = LineEditor().feed("text\r\n")
    assert (line.plain, line.redrawn) == ("text", False)


def test_endless_line_is_cut():
    editor = LineEditor()
    lines = editor.feed("x" * (2 * LONGEST_LINE + 1))
    assert [len(line.plain) for line in lines] == [LONGEST_LINE] * 2
    assert editor.current.plain == "x"


def test_clipped_line_fits_the_terminal():
    editor = LineEditor()
    editor.feed("\x1b[1mab\x1b[0m漢字")
    assert editor.clipped(3) == "\x1b[1mab\x1b[0m"
    assert editor.clipped(4) == "\x1b[1mab\x1b[0m漢\x1b[0m"


@pytest.mark.parametrize(
    ("line", "information"),
    [
        ("2025-01-01 00:00:00.123456: I tensorflow/core/x.cc:1] hello", True),
        ("2025-01-01 00:00:00.123456: W tensorflow/core/x.cc:1] hello", False),
        ("I0000 00:00:1795252407.846184    4013 port.cc:153] oneDNN", True),
        ("E0000 00:00:1795252412.035781    4013 cuda.cc:52] failed", False),
        ("INFO:tensorflow:Using a strategy", True),
        ("WARNING:tensorflow:careful", False),
        ("Traceback (most recent call last):", False),
        ("  ", True),
    ],
)
def test_information_is_distinguished_from_warnings(line, information):
    assert is_information(line) is information


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("I0000 00:00:1795252407.846184    4013 port.cc:153] oneDNN", True),
        ("WARNING: All log messages before absl::InitializeLog() is called are", True),
        ("INFO:root:a line of the script's own", False),
        ("W0000 00:00:1795252407.846184    4013 port.cc:153] careful", False),
    ],
)
@pytest.mark.parametrize("gpus", [False, True])
def test_information_lines_of_tensorflow_are_recognized(line, hidden, gpus):
    assert is_of_start_up(line, gpus) is hidden


@pytest.mark.parametrize(
    "line",
    [
        "E0000 00:00:1795414287.667256   11126 cuda_platform.cc:52] failed call to "
        "cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        "2025-01-01 00:00:00.123456: E external/local_xla/xla/stream_executor/cuda/"
        "cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register",
    ],
)
def test_errors_about_gpus_matter_where_there_are_some(line):
    assert is_of_start_up(line, gpus=False)
    assert not is_of_start_up(line, gpus=True)


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
    assert parse_visible_devices("") == []
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
        ("--workers 100000 S", "may open, 8 for each worker. Received: 100000, with"),
        ("S --workers 2", "Received: it after the script"),
        ("S -n 2", "Received: it after the script"),
        ("--workers 2", "a script or a module"),
        ("--workers 2 -m", "a script or a module"),
        ("--workers 2 missing.py", "Received: missing.py (no such file"),
        ("--workers 2 .", "(a directory"),
        ("--workers 2 -m no_such.thing", "no_such was not found"),
        ("--workers 2 -m json.nothing", "json.nothing was not found"),
        ("--workers 2 -m json", "__main__"),
        ("--workers 2 --port 65535 S", "Received: 65535"),
        ("--workers 2 --threads-per-worker 0 S", "--threads-per-worker"),
        ("--workers 2 --gpus-per-worker 1 S", "0 visible GPUs"),
        ("--workers 2 --grace-seconds nan S", "--grace-seconds"),
        ("--workers 2 --log-dir S/logs S", "is not a writable directory"),
        ("--workers 2 --max-restarts -1 S", "integer >= 0. Received: -1"),
        ("--workers 2 --max-restarts 1 --min-workers 0 S", ">= 1. Received: 0"),
        ("--workers 4 --max-restarts 1 --min-workers 5 S", "Received: 5, with --work"),
        ("--workers 4 --max-workers 3 S", "Received: 3, with --workers 4"),
        ("--workers 2 --report S/r.json S", "--report must be a file that can be"),
        ("--workers 2 --node-rank 1 S", "Received: them without --nnodes"),
        ("--workers 2 --nnodes 2 S", "from 0 to 1, with --nnodes 2. Received: None"),
        ("--workers 2 --nnodes 2 --node-rank 2 S", "Received: 2"),
        ("--workers 2 --nnodes 2 --node-rank 1 S", "HOST:PORT, which leads"),
        (
            "--workers 2 --nnodes 2 --node-rank 1 --rendezvous host S",
            "Received: host. Pass",
        ),
        (
            "--workers 2 --nnodes 2 --node-rank 1 --rendezvous h:1 --dry-run S",
            "--dry-run is for one machine",
        ),
        ("--workers 2 --report . S", "--report must be a file that can be"),
        ("--workers 2 --report no/r.json S", "Received: no/r.json (No such file"),
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


def test_dry_run_starts_nothing(script, capsys, tmp_path):
    logs = tmp_path / "logs"
    command = [script, "a b"]
    assert launcher.run(2, command, dry_run=True, log_dir=logs) == 0
    printed = capsys.readouterr().out
    assert '"index": 1}' in printed
    assert f"{sys.executable} {script} 'a b'\n" in printed
    assert not logs.exists() and not os.path.exists("started")


@pytest.mark.parametrize(
    ("workers", "options", "environment", "mpi"),
    [
        (2, {}, {}, True),
        (2, {"gpus_per_worker": 0}, {"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        (2, {}, {"CUDA_VISIBLE_DEVICES": "0,1"}, False),
        (1, {}, {}, False),
        (2, {"independent": True}, {}, False),
        (2, {"transport": "tensorflow"}, {}, False),
        # The launcher is itself a process of MPI.
        (2, {}, {"PMI_RANK": "0"}, False),
    ],
)
def test_workers_on_cpus_are_ranks_of_mpi(
    workers, options, environment, mpi, script, capsys
):
    pytest.importorskip("mpi4py")
    environment = {"CUDA_VISIBLE_DEVICES": "", **environment}
    command = [script]
    launcher.run(workers, command, dry_run=True, environment=environment, **options)
    assert ("mpiexec" in capsys.readouterr().out) is mpi


def test_another_mpi_library_is_not_taken_unasked(
    script, capsys, monkeypatch, tmp_path
):
    pytest.importorskip("mpi4py")
    assert mpi_is_installed()
    # mpi4py without MPICH's wheel beside it.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "-packages" not in p])
    assert importlib.util.find_spec("mpi4py") is not None
    launcher.run(2, [script], dry_run=True)
    assert "mpiexec" not in capsys.readouterr().out
    assert launcher.run(2, [script], dry_run=True, transport="mpi") == 0


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
        "cli.main(['run', '--workers', '1', '-m', 'keras.nothing'])\n"
        "print(sorted({'keras', 'numpy', 'tensorflow'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.stdout == "[]\n", result.stderr
