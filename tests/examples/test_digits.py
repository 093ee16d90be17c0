"""The example `digits.py`, as `fastnet run` starts it from any folder."""

import re

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("target", "code"), [(0.5, 0), pytest.param(1.1, 1, marks=pytest.mark.slow)]
)
def test_digits_reach_a_target_on_equal_workers_or_fail(fastnet, target, code):
    script = ("-m", "keras_fastnet.examples.digits")
    short = ("--epochs", 2, "--global-batch", 8192, "--target", target)
    result = fastnet("run", "--workers", 2, *script, *short)
    assert result.returncode == code, result.stdout + result.stderr
    rows = re.findall(r"^(\w[\w /]*?)  +(\S.*)$", result.stdout, re.MULTILINE)
    # The chief alone prints the table.
    assert len(dict(rows)) == len(rows)
    # An epoch in batches of 2,048 and one in batches of 8,192.
    assert dict(rows)["updates"] == "40"
    assert re.fullmatch(r"yes \([0-9a-f]{15}\)", dict(rows)["equal weights"])
