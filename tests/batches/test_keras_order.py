"""`fit(x, y)` on several workers has the losses of plain Keras without the package."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).with_name("plain_fits.py")

pytestmark = pytest.mark.distributed


def test_losses_of_two_workers_are_those_of_plain_keras(fastnet, environment, tmp_path):
    file = tmp_path / "losses"
    # Workers do not connect to one another by a proxy, which here does not exist.
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "example.com"}
    with subprocess.Popen([sys.executable, SCRIPT, file], env=environment) as plain:
        done = fastnet("run", "--workers", 2, SCRIPT, file, "strategy", **proxy)
    assert done.returncode == 0, done.stderr
    assert "2 workers on 1 host, started by `fastnet run`" in done.stdout
    assert plain.returncode == 0
    expected = json.loads(file.read_text())
    for rank in range(2):
        seen = json.loads(file.with_suffix(f".{rank}").read_text())
        assert seen.keys() == expected.keys()
        for name, losses in expected.items():
            np.testing.assert_allclose(seen[name], losses, rtol=0, atol=1e-12)
