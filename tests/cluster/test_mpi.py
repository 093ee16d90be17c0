"""Training over MPI, with real `mpiexec` and real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

SCRIPT = str(Path(__file__).with_name("mpi_training.py"))
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
PATIENCE = 120.0  # against hangs only


@pytest.fixture
def python(environment):
    """Runs Python on its own, or under `mpiexec`, until it ends."""

    def run(*words, ranks=None, **variables):
        started = [sys.executable, *words]
        if ranks is not None:
            started = [MPIEXEC, "-n", str(ranks), *started]
        threads = {f"TF_NUM_{pool}_THREADS": "1" for pool in ("INTRAOP", "INTEROP")}
        return subprocess.run(
            started,
            env={**environment, **threads, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def weights_of(output):
    return dict(re.findall(r"rank (\d+) weights (\[.*?\])", output))


@pytest.mark.parametrize(
    ("options", "carrier"),
    [
        ("{}", "MPI"),
        pytest.param(
            '{"transport": "tensorflow"}',
            "TensorFlow's collectives, gRPC",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mpiexec_needs_no_other_description(python, options, carrier):
    done = python(SCRIPT, "end", options, ranks=2)
    assert done.returncode == 0, done.stderr
    weights = weights_of(done.stdout)
    assert set(weights) == {"0", "1"}
    assert weights["0"] == weights["1"]
    assert re.search(rf"transport +{carrier};", done.stdout)


def test_failed_rank_is_named_and_ends_the_others(python):
    done = python(SCRIPT, "raise", ranks=3)
    assert done.returncode != 0
    assert "ValueError: on purpose" in done.stderr
    assert "keras_fastnet: rank 1 on" in done.stderr
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_ranks_that_fail_alike_print_one_traceback(python):
    done = python(SCRIPT, "raise-on-all", ranks=3)
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("failed too: ValueError: on purpose") >= 1


def test_rank_that_exits_early_is_named(python):
    done = python(SCRIPT, "leave", ranks=2)
    assert done.returncode != 0
    assert "rank 1 has left the program" in done.stderr


def test_killed_rank_is_named_by_its_process(python):
    """mpiexec reports the process number, and the strategy printed whose it is."""
    done = python(SCRIPT, "kill", ranks=2)
    assert done.returncode != 0
    killed = re.search(r"PID (\d+) RUNNING AT", done.stdout + done.stderr)
    assert f"1 (process {killed[1]} on " in done.stdout + done.stderr


def test_different_sums_are_reported(python):
    done = python(SCRIPT, "other", ranks=2)
    assert done.returncode != 0
    assert "same tensors in the same order" in done.stderr
    assert re.search(r"rank 0: sum \d+ of \d+ bytes", done.stderr)


REFUSED = {
    "no MPI": ({}, '{"transport": "mpi"}', "several processes that MPI started"),
    "unknown": ({}, '{"transport": "tcp"}', '"auto", "mpi" or "tensorflow"'),
    "other library": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
        "{}",
        "4 processes were started, and mpi4py knows of 1",
    ),
    "no mpi4py": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"},
        "{}",
        "pip install 'keras-fastnet[mpi]'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_starts_raise(python, case):
    variables, options, words = REFUSED[case]
    done = python(SCRIPT, "end", options, **variables)
    assert done.returncode != 0
    assert words in done.stderr


def test_tf_config_that_contradicts_mpi_raises(python):
    cluster = '{"cluster": {"worker": ["127.0.0.1:1"]}, "task": %s}'
    task = '{"type": "worker", "index": 0}'
    done = python(SCRIPT, "end", ranks=2, TF_CONFIG=cluster % task)
    assert "must describe the same cluster" in done.stderr


@pytest.mark.parametrize(
    ("action", "code", "words"),
    [
        ("end", 0, ""),
        ("raise", 1, "worker 1 failed first: ValueError: on purpose"),
        ("kill", 137, "worker 1 failed first: killed by SIGKILL"),
    ],
)
def test_fastnet_run_starts_mpi_ranks(fastnet, tmp_path, action, code, words):
    done = fastnet("run", "--workers", 2, "--log-dir", tmp_path, SCRIPT, action)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    weights = weights_of(done.stdout + (tmp_path / "rank-1.log").read_text())
    assert weights["0"] == weights["1"]
    assert re.search(r"transport +MPI;", done.stdout)


def test_output_of_a_failed_mpiexec_is_shown(fastnet, tmp_path):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "python").symlink_to(sys.executable)
    (broken / "mpiexec").write_text("#!/bin/sh\necho no slots left\nexit 1\n")
    (broken / "mpiexec").chmod(0o755)
    done = subprocess.run(
        [
            *(str(broken / "python"), "-m", "keras_fastnet.cli"),
            *("run", "--workers", "2", "--transport", "mpi", SCRIPT, "end"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "no slots left" in done.stderr
