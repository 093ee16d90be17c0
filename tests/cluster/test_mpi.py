"""Training over MPI, with real `mpiexec` and real processes."""

import os
import re
import subprocess
import sys

import pytest

from tests.cluster.processes import PATIENCE, TRAIN, check_weights, weights_of

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("transport", "carrier"),
    [
        ("auto", "MPI"),
        pytest.param("tensorflow", "gRPC", marks=pytest.mark.slow),
    ],
)
def test_mpiexec_needs_no_other_description(python, tmp_path, transport, carrier):
    done = python(TRAIN, tmp_path, "2", "0", transport, ranks=2)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"over {carrier}", done.stdout)
    check_weights(*weights_of(tmp_path))


REFUSED = {
    "no MPI": ({}, "mpi", "several processes that MPI started"),
    "other library": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
        "auto",
        "4 processes were started, and mpi4py knows of 1",
    ),
    "no mpi4py": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"},
        "auto",
        "pip install mpi4py mpich",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_starts_raise(python, tmp_path, case):
    variables, transport, words = REFUSED[case]
    done = python(TRAIN, tmp_path, "1", "0", transport, **variables)
    assert done.returncode != 0
    assert words in done.stderr


def test_output_of_a_failed_mpiexec_is_shown(fastnet, tmp_path):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "python").symlink_to(sys.executable)
    (broken / "mpiexec").write_text("#!/bin/sh\necho no slots left\nexit 1\n")
    (broken / "mpiexec").chmod(0o755)
    done = subprocess.run(
        [
            *(str(broken / "python"), "-m", "keras_fastnet.cli"),
            *("run", "--workers", "2", "--transport", "mpi", TRAIN),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "no slots left" in done.stderr
