"""The `fastnet` command: `fastnet env`."""

import keras
import tensorflow as tf

from keras_fastnet.cli import main
from keras_fastnet.version import __version__


def test_env_tells_versions_and_the_cluster_and_no_secret(monkeypatch, capsys):
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    # As Terraform passes secrets.
    monkeypatch.setenv("TF_VAR_password", "a secret")
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    for part in (__version__, tf.__version__, keras.__version__, cluster):
        assert part in shown
    assert "described by TF_CONFIG" in shown
    assert "secret" not in shown
