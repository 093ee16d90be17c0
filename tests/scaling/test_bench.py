"""`fastnet bench`: its measurements, its file, its table and its errors."""

import json
import math
import re

import pytest

from keras_fastnet import cli
from keras_fastnet.collectives.cost_model import Topology
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.scaling.all_reduce_timing import time_in_turn
from keras_fastnet.scaling.applications import application_named
from keras_fastnet.scaling.bench_options import BenchOptions
from keras_fastnet.scaling.bench_results import (
    as_text,
    read_measurements,
    read_weak_scaling,
)

SHORT = ("--sizes", "4KiB,2MB", "--repeats", 2)


def check_rows(document, ranks, grids):
    """Checks that all algorithms were timed."""
    algorithms = [("tensorflow", [ranks, 1]), ("ring", [ranks, 1])]
    small = algorithms + [(name, g) for g in grids for name in ("torus", "gather")]
    large = algorithms + [("torus", g) for g in grids]
    rows = [(r["bytes"], r["algorithm"], r["grid"]) for r in document["all_reduce"]]
    expected = [(4096, *c) for c in small] + [(2_000_000, *c) for c in large]
    assert [row for row in rows if row[1] != "auto"] == expected
    assert [row[:2] for row in rows if row[1] == "auto"] == [
        (4096, "auto"),
        (2_000_000, "auto"),
    ]
    for row in document["all_reduce"]:
        assert 0 < row["seconds_min"] <= row["seconds"] <= row["seconds_max"]


def check_table(text):
    """Checks that there is a line for each size, with one best algorithm."""
    lines = re.findall(r"^(?:\[0\] )?(4 KiB|2 MB) (.*)$", text, re.MULTILINE)
    assert [size for size, _ in lines] == ["4 KiB", "2 MB"], text
    assert all(line.count("*") == 1 for _, line in lines), text
    assert re.search(r"size +tensorflow +ring +torus .* auto +best/ring", text)


@pytest.mark.distributed
@pytest.mark.slow
def test_local_workers(fastnet, tmp_path):
    path = tmp_path / "found.json"
    training = ("--model", "MobileNet", "--batch", 2, "--image-size", 32)
    words = ("--transport", "tensorflow", *SHORT, *training, "--output", path)
    result = fastnet("bench", "--workers", 2, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "retracing" not in result.stderr
    document = json.loads(path.read_text())
    check_table(result.stdout)
    check_rows(document, 2, [[1, 2]])

    assert set(document["versions"]) == {
        "python",
        "tensorflow",
        "keras",
        "keras_fastnet",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["date"])
    facts = ("format", "transport", "ranks", "hosts", "ranks_per_host", "wire_dtype")
    assert [document[fact] for fact in facts] == [1, "tensorflow", 2, 1, 2, "float32"]
    assert document["cpu"] and document["cores_per_host"] >= 1
    assert document["command"].startswith("fastnet bench --workers 2 --sizes 4KiB,2MB")

    scaling = document["weak_scaling"]
    assert (scaling["model"], scaling["batch_per_replica"]) == ("MobileNet", 2)
    assert scaling["image_size"] == 32
    ratio = scaling["compute_seconds"] / scaling["step_seconds"]
    assert math.isclose(scaling["efficiency"], ratio)
    assert read_weak_scaling(path).parameters == 4_231_976  # Keras's, trainable

    read = read_measurements(path)
    assert {m.topology for m in read} == {
        Topology(1, 2, cores=document["cores_per_host"])
    }
    assert [m.algorithm for m in read] == ["ring", "torus", "gather", "ring", "torus"]
    assert [m.nbytes for m in read] == [4096] * 3 + [2e6] * 2
    plan = fastnet("plan", "--ranks", 8, "--bench", path)
    assert plan.returncode == 0, plan.stderr
    assert "MobileNet" in plan.stdout


@pytest.mark.distributed
def test_mpis_own_all_reduce_is_timed_too(fastnet, tmp_path):
    path = tmp_path / "found.json"
    words = ("--transport", "mpi", "--sizes", "4KiB,1MiB", "--repeats", 2)
    result = fastnet("bench", "--workers", 2, *words, "--output", path)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(path.read_text())
    assert document["transport"] == "mpi"
    found = [row["algorithm"] for row in document["all_reduce"]]
    others = ["tensorflow", "auto, gRPC", "MPI_Allreduce", "auto, Python"]
    assert found == 2 * [*others, "ring", "torus", "gather", "auto"]
    # Costs are fitted to the model's algorithms. Here "ring" is an exchange among all.
    assert {m.algorithm for m in read_measurements(path)} == {"torus", "gather"}


@pytest.mark.distributed
def test_cluster_of_tf_config(fastnet, tmp_path):
    path = tmp_path / "found.json"
    words = ("bench", *SHORT, "--grid", "2x1", "--wire-dtype", "bfloat16")
    command = ("run", "--workers", 2, "-m", "keras_fastnet.cli", *words)
    result = fastnet(*command, "--output", path)
    assert result.returncode == 0, result.stdout + result.stderr
    # A torus with one column equals the ring, and is not measured twice.
    document = json.loads(path.read_text())
    found = {(r["algorithm"], tuple(r["grid"])) for r in document["all_reduce"]}
    assert {("ring", (2, 1)), ("gather", (2, 1)), ("tensorflow", (2, 1))} <= found
    assert "torus" not in {algorithm for algorithm, _ in found}
    # bfloat16 halves the bytes that are sent.
    assert {m.nbytes for m in read_measurements(path)} == {2048, 1e6}
    assert "4 KiB" in result.stdout


@pytest.mark.distributed
def test_failure_leaves_no_file(fastnet, tmp_path):
    path = tmp_path / "found.json"
    training = ("--model", "InceptionV3", "--image-size", 8)
    result = fastnet("bench", "--workers", 2, *training, "--output", path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "--image-size must be one that the model takes" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Received: neither --workers nor TF_CONFIG"),
        (["--workers", "1"], "at least two ranks. Received: 1."),
        (["--workers", "0"], "--workers must be an integer >= 1. Received: 0."),
        (["--workers", "4", "--repeats", "0"], "--repeats must be"),
        (["--workers", "4", "--image-size", "-8"], "--image-size must be"),
        (["--workers", "4", "--sizes", "4KiB,many"], "Received: 'many'"),
        (["--workers", "4", "--sizes", "4KiB,"], "Received: ''"),
        (["--workers", "4", "--sizes", "1GiB"], "Received: '1GiB'"),
        (["--workers", "4", "--sizes", "10"], "a positive multiple of 4"),
        (["--workers", "4", "--sizes", "0"], "a positive multiple of 4"),
        (["--workers", "4", "--grid", "2"], "--grid must be rows x columns"),
        (["--workers", "4", "--grid", "0x4"], "--grid must be rows x columns"),
        (["--workers", "4", "--grid", "2x3"], "These fit: 1x4, 2x2, 4x1."),
        (["--workers", "4", "--output", "no/such/file"], "there is no directory"),
        (["--workers", "4", "--output", "/"], "it is a directory"),
        (["--workers", "2", "--model", "ResNet"], "Close to it: ResNet50"),
    ],
)
def test_invalid_options_are_errors(words, message, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(launcher, "run", lambda *_, **__: pytest.fail("started"))
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Received: " in error


def test_workers_within_a_cluster_are_an_error(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert cli.main(["bench", "--workers", "2"]) == 2
    assert "TF_CONFIG must not be set" in capsys.readouterr().err


def test_options_reach_the_workers(monkeypatch, tmp_path):
    launched = []

    def run(workers, command, **_):
        launched.append((workers, command))
        return 3

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(launcher, "run", run)
    path = tmp_path / "found.json"
    words = ["--sizes", "1MiB,100MB, 8,4kb,1048576", "--grid", "2x3", "--grid", "3X2"]
    words += ["--grid", "2x3", "--output", str(path)]
    assert cli.main(["bench", "--workers", "6", *words]) == 3
    assert not path.exists()
    [(workers, command)] = launched
    options = BenchOptions.from_json(command[-1])
    assert workers == 6
    assert options.sizes == (8, 4000, 2**20, 10**8)
    assert options.grids == (Grid(2, 3), Grid(3, 2))
    assert (options.repeats, options.wire_dtype, options.model) == (7, "float32", None)


def test_models_are_looked_up_by_name():
    assert application_named("resnet50", ["ResNet50", "resnet"]) == "ResNet50"
    with pytest.raises(UsageError, match="Close to it: ResNet50"):
        application_named("resnet", ["ResNet50", "resnet"])


def test_every_round_calls_all_functions():
    calls, finished = [], []
    functions = [lambda: calls.append("a"), lambda: calls.append("b")]
    found = time_in_turn(
        functions,
        finished.append,
        agree=lambda own: [2, 1],  # Not what this rank would have chosen.
        warm_up_calls=3,
        rounds=3,
    )
    assert "".join(calls) == "aaabbb" + "aab" + "baa" + "aab"
    assert len(finished) == 8
    assert [len(seconds) for seconds in found] == [3, 3]


def test_table():
    def row(algorithm, grid, nbytes, seconds):
        return {
            "algorithm": algorithm,
            "grid": grid,
            "bytes": nbytes,
            "seconds": seconds,
        }

    document = {
        "ranks": 4,
        "hosts": 1,
        "transport": "mpi",
        "wire_dtype": "float32",
        "rounds": 7,
        "all_reduce": [
            row("tensorflow", [4, 1], 4096, 0.012),
            row("ring", [4, 1], 4096, 0.01),
            row("gather", [2, 2], 4096, 0.004),
            row("tensorflow", [4, 1], 10_000_004, 0.5),
            row("ring", [4, 1], 10_000_004, 0.25),
        ],
    }
    assert as_text(document).splitlines() == [
        "4 ranks on 1 host, transport mpi, float32 on the wire; milliseconds, "
        "median of 7 rounds, * is the fastest",
        "size          tensorflow     ring  gather 2x2  best/ring",
        "4 KiB             12.00    10.00        4.00*       0.40",
        "10,000,004 B     500.00   250.00*          -        1.00",
    ]
