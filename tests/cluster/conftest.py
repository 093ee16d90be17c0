"""Runs programs with and without `mpiexec`."""

import subprocess
import sys

import pytest

from tests.cluster.processes import MPIEXEC, PATIENCE, QUIET


@pytest.fixture
def python(environment):
    """Runs Python on its own, or under `mpiexec`, until it ends."""

    def run(*words, ranks=None, **variables):
        mpi = [] if ranks is None else [MPIEXEC, "-n", str(ranks)]
        return subprocess.run(
            [*mpi, sys.executable, *map(str, words)],
            env={**environment, **QUIET, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run
