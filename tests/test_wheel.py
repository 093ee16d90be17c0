"""The built wheel works outside of the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.landing

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the sdist and of the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_metadata_is_accepted_by_a_package_index(built):
    files = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


TRAINING = """
import importlib.util
import keras
import numpy as np
import keras_fastnet

strategy = keras_fastnet.TorusStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras_fastnet.LARS(0.1), "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
demo = importlib.util.find_spec("keras_fastnet.examples.digits").origin
print(strategy.num_workers, "workers trained beside", demo)
"""


def test_two_workers_train_beside_the_demo_script(built, fastnet, monkeypatch):
    (wheel,) = built.glob("*.whl")
    site = built / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    (built / "train.py").write_text(TRAINING)
    monkeypatch.chdir(built)
    # Before the checkout, which may be installed too.
    done = fastnet("run", "--workers", 2, "train.py", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 workers trained beside {site}" in done.stdout
