"""A script without a strategy that several workers run: each would train alone."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_fastnet.cluster.environment import who_started

SCRIPTS = Path(__file__).parents[1] / "launcher_scripts"
TRAIN = str(SCRIPTS / "train_without_strategy.py")
TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
        "task": {"type": "worker", "index": 0},
    }
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def fastnet(fastnet):
    return functools.partial(fastnet, "run")


@pytest.fixture
def python(environment):
    """Runs the script without the launcher."""

    def run(*words, **variables):
        return subprocess.run(
            [sys.executable, TRAIN, *map(str, words)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


@pytest.mark.distributed
@pytest.mark.parametrize("words", [(), ("import",)])
def test_the_first_fit_ends_with_the_lines_to_add(fastnet, tmp_path, words):
    result = fastnet("--workers", 2, TRAIN, tmp_path, *words)
    assert result.returncode == 1
    assert "evaluated" in result.stdout
    for word in [
        "ValueError: A script that several workers run must train in the scope",
        "Received: training of 'sequential'",
        "started by `fastnet run`",
        "    strategy = keras_fastnet.TorusStrategy()",
        "    with strategy.scope():",
        "--independent",
        "keras_fastnet.train_alone()",
    ]:
        assert word in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", 2, "--independent"], ["import"]),
        pytest.param(["--workers", 2], ["import", "alone"], marks=pytest.mark.slow),
        pytest.param(["--workers", 2], ["use"], marks=pytest.mark.slow),
        (["--workers", 1], []),
    ],
)
def test_allowed(fastnet, tmp_path, options, words):
    result = fastnet(*options, TRAIN, tmp_path, *words)
    assert result.returncode == 0, result.stderr
    weights = {path.read_text() for path in tmp_path.iterdir()}
    assert len(weights) == options[1]


@pytest.mark.distributed
def test_without_the_launcher_it_is_for_those_who_import_the_package(python, tmp_path):
    refused = python(tmp_path, "import", TF_CONFIG=TF_CONFIG)
    assert refused.returncode == 1
    assert "several workers started by TF_CONFIG" in refused.stderr
    variables = {"TF_CONFIG": TF_CONFIG, "FASTNET_INDEPENDENT": "1"}
    assert python(tmp_path, "import", **variables).returncode == 0
    assert python(tmp_path, TF_CONFIG=TF_CONFIG).returncode == 0
    one = TF_CONFIG.replace(', "127.0.0.1:2"', "")
    assert python(tmp_path, "import", TF_CONFIG=one).returncode == 0


@pytest.mark.parametrize("path", [None, "extra"])
def test_the_script_finds_the_environment_as_it_was(fastnet, tmp_path, path):
    folder = tmp_path / "extra"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys\n"
        "print(os.environ.get('PYTHONPATH'), getattr(sys, 'own', None))\n"
        "print([p for p in sys.path if 'at_start' in p])\n"
    )
    root = str(Path(__file__).parents[2])
    value = root if path is None else f"{root}{os.pathsep}{folder}"
    result = fastnet("--workers", 2, script, PYTHONPATH=value)
    own = None if path is None else folder / "sitecustomize.py"
    assert result.stdout == f"{value} {own}\n[]\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"TF_CONFIG": TF_CONFIG}, "TF_CONFIG"),
        ({"TF_CONFIG": "{}"}, None),
        ({"TF_CONFIG": "[1"}, None),
        ({"TF_CONFIG": '{"cluster": {"worker": 3}}'}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            "Slurm (job ?, step ?)",
        ),
        (
            {"JOB_COMPLETION_INDEX": "0", "FASTNET_WORKERS": "2"},
            "a Kubernetes Indexed Job",
        ),
        ({"JOB_COMPLETION_INDEX": "3", "FASTNET_WORKERS": "2"}, None),
    ],
    ids=str,
)
def test_who_started(variables, expected):
    assert who_started(variables) == expected
