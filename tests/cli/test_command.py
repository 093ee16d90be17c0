"""The `fastnet` command: wrong words, and `fastnet env`."""

import keras
import pytest
import tensorflow as tf

from keras_fastnet.cli import main
from keras_fastnet.version import __version__


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("chekc", "check"),
        ("run --worker 2 train.py", "--workers"),
        ("run -n 2 --transport mpy train.py", "mpi"),
        ("plan --modle ResNet50", "--model"),
    ],
)
def test_wrong_words_have_a_suggestion(capsys, words, meant):
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert f" Did you mean {meant}? See `fastnet" in error
    assert len(error.splitlines()) == 1


def test_words_like_no_other_have_none(capsys):
    assert main(["bench", "--zzz"]) == 2
    error = capsys.readouterr().err
    assert "unrecognized arguments: --zzz. See `fastnet bench --help`" in error


@pytest.mark.parametrize("command", ["run", "check", "demo", "bench"])
def test_n_is_short_for_workers(capsys, command):
    assert main([command, "-n", "0"]) == 2
    assert "--workers must be an integer >= 1. Received: 0" in capsys.readouterr().err


def test_env_tells_versions_and_the_cluster_and_no_secret(monkeypatch, capsys):
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    monkeypatch.setenv("FASTNET_TOKEN", "a secret of 32 bytes, or more of them")
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    for part in (__version__, tf.__version__, keras.__version__, cluster):
        assert part in shown
    assert "described by TF_CONFIG" in shown
    assert "changes, all made" in shown
    assert "secret" not in shown
