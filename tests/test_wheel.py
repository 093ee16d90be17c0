"""The built wheel works outside of the checkout."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel, made from the sdist; the rest is borrowed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
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
    return subprocess.run(
        [python, *words], cwd=python.parent, capture_output=True, text=True, timeout=120
    )


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
