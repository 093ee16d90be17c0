"""The `fastnet` command: `fastnet env`."""

import keras
import pytest
import tensorflow as tf

from keras_fastnet.cli import main
from keras_fastnet.version import __version__


def test_env_tells_versions_and_the_cluster_and_no_secret(
    monkeypatch, capsys, tmp_path
):
    nightly = tmp_path / "keras_nightly-3.17.0.dev1.dist-info"
    nightly.mkdir()
    (nightly / "METADATA").write_text("Name: keras-nightly\nVersion: 3.17.0.dev1\n")
    monkeypatch.syspath_prepend(tmp_path)
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    # As Terraform passes secrets.
    monkeypatch.setenv("TF_VAR_password", "a secret")
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    for part in (__version__, tf.__version__, keras.__version__, cluster):
        assert part in shown
    assert "described by TF_CONFIG" in shown
    assert "keras-nightly 3.17.0.dev1" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    "words",
    [
        "run --workers 1 missing.py",
        "plan --ranks 4 --parameters 9 --compute-ms 1",
    ],
)
def test_nothing_heavy_is_imported_for_an_answer(python, words):
    code = (
        "import sys; from keras_fastnet.cli import main; "
        f"main('{words}'.split()); "
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.stdout.endswith("[]\n"), done.stderr
