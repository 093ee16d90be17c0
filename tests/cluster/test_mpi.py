"""Training over MPI, with real `mpiexec` and real processes."""

import re

import pytest

from tests.cluster.processes import TRAIN, check_weights, weights_of

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
