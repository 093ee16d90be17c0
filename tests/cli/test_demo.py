"""`fastnet demo` and the script that it runs."""

import importlib.util
import re

import pytest

from keras_fastnet import cli
from keras_fastnet.cli import demo
from keras_fastnet.launcher import launcher


@pytest.fixture
def launched(monkeypatch):
    """Records what would be launched, which ends with exit code 3."""
    calls = []

    def run(*arguments, **options):
        calls.append(arguments)
        return 3

    monkeypatch.setattr(launcher, "run", run)
    return calls


def table(output):
    """Returns the table that rank 0 prints, as a dictionary; it stands there once."""
    rows = re.findall(r"^(\w[\w /]*?)  +(\S.*)$", output, re.MULTILINE)
    assert len(dict(rows)) == len(rows) > 0, output
    return dict(rows)


@pytest.mark.distributed
def test_target_reached(fastnet):
    short = ("--epochs", 2, "--global-batch", 8192, "--target", 0.5)
    result = fastnet("run", "--workers", 2, demo.SCRIPT, *short)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = table(result.stdout)
    assert rows["workers"] == "2"
    assert rows["global batch"] == "8,192"
    # An epoch in batches of 2,048 and one in batches of 8,192.
    assert rows["updates"] == "40"
    assert re.match(r"[1-9][\d,]+ ", rows["examples/s"])
    assert re.match(r"\d+\.\d\d%.*50%", rows["test accuracy"])
    assert re.fullmatch(r"yes \([0-9a-f]{15}\)", rows["equal weights"])


@pytest.mark.distributed
def test_target_missed(fastnet):
    result = fastnet("demo", "--workers", 2, "--epochs", 1, "--global-batch", 16384)
    assert result.returncode == 1, result.stdout + result.stderr
    rows = table(result.stdout)
    # One epoch, in batches of 4,096.
    assert rows["updates"] == "16"
    assert re.fullmatch(r"yes \([0-9a-f]{15}\)", rows["equal weights"])
    assert "98%" in rows["test accuracy"]


def test_defaults_are_those_of_the_script(launched):
    assert cli.main(["demo"]) == 3
    assert launched == [(4, [str(demo.SCRIPT)])]
    assert demo.SCRIPT.is_file()


def test_options(launched):
    words = ["--workers", "2", "--epochs", "5", "--global-batch", "1024"]
    assert cli.main(["demo", *words]) == 3
    assert launched == [
        (2, [str(demo.SCRIPT), "--epochs", "5", "--global-batch", "1024"])
    ]


@pytest.mark.parametrize("option", ["--workers", "--epochs", "--global-batch"])
def test_numbers_below_one_are_errors(option, capsys):
    assert cli.main(["demo", option, "0"]) == 2
    error = capsys.readouterr().err
    assert f"{option} must be an integer >= 1. Received: 0." in error


def test_global_batch_must_be_a_multiple_of_four(launched, capsys):
    assert cli.main(["demo", "--global-batch", "10"]) == 2
    assert "Received: 10. Near it: 8 and 12." in capsys.readouterr().err
    assert not launched


def test_missing_scikit_learn(monkeypatch, launched, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err
    assert not launched


def test_help_states_the_defaults_of_the_script(capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    stated = re.findall(r"default:\s+(\d+)", capsys.readouterr().out)
    script = demo.SCRIPT.read_text(encoding="utf-8")
    in_script = re.findall(r"type=int, default=([\d_]+)", script)[:2]
    assert stated == ["4", *(number.replace("_", "") for number in in_script)]
