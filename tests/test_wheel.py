"""The built wheel works outside of the checkout."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.landing

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the sdist and of the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def installed(built):
    """An environment with the wheel; the rest is borrowed."""
    (wheel,) = built.glob("*.whl")
    environment = built / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = next(environment.glob("lib/python*/site-packages"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    dependencies = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(dependencies)
    return python


def run(python, *words):
    # The checkout may be on the path.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, *words],
        cwd=python.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_metadata_is_accepted_by_a_package_index(built):
    files = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


TRAINING = """
import keras
import numpy as np
import keras_fastnet

strategy = keras_fastnet.TorusStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras_fastnet.LARS(0.1), "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
print(strategy.num_workers, "workers trained with", keras_fastnet.__file__)
"""


def test_two_workers_train(installed):
    (installed.parent / "train.py").write_text(TRAINING)
    command = ["-m", "keras_fastnet.cli", "run", "--workers", "2", "train.py"]
    done = run(installed, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    place = installed.parents[1]
    assert f"2 workers trained with {place}" in done.stdout


def test_command(installed):
    done = run(installed, "-m", "keras_fastnet.cli", "--version")
    assert done.returncode == 0, done.stderr
    shown = run(installed, "-c", "import keras_fastnet; print(keras_fastnet.__file__)")
    assert str(installed.parents[1]) in shown.stdout


def test_import_is_light(installed):
    code = "import sys, keras_fastnet; print(sorted({'tensorflow'} & set(sys.modules)))"
    assert run(installed, "-c", code).stdout.strip() == "[]"


def test_demo_script_is_in_the_wheel(installed):
    code = (
        "import importlib.util as u;"
        "print(u.find_spec('keras_fastnet.examples.digits').origin)"
    )
    assert str(installed.parents[1]) in run(installed, "-c", code).stdout
