"""`fastnet plan`: its predictions against arithmetic by hand, and its errors."""

import argparse
import functools
import json
import re
import subprocess
import sys

import pytest

from keras_fastnet import cli
from keras_fastnet.collectives.cost_model import Topology
from keras_fastnet.scaling.published import PUBLISHED_SYSTEMS, predict

COSTS = [
    *("--latency-us", "100", "--overhead-us", "0", "--bandwidth-gb", "1"),
    *("--network-latency-us", "200", "--network-overhead-us", "50"),
    *("--network-bandwidth-gb", "0.5", "--copy-bandwidth-gb", "10"),
    *("--collective-us", "30"),
]
BENCH = {
    "format": 1,
    "command": "fastnet bench",
    "date": "2026-11-21",
    "versions": {},
    "transport": "tensorflow",
    "ranks": 4,
    "hosts": 1,
    "ranks_per_host": 4,
    "cores_per_host": 2,
    "wire_dtype": "float32",
    "bucket_bytes": 1_000_000_000,
    # A rank alone would take 100 us a message and 1 ns a byte: a ring of four has 6
    # messages and 1.5 vectors. Two cores for four ranks double that.
    "all_reduce": [
        {"algorithm": "ring", "grid": [1, 4], "bytes": n, "seconds": 2 * seconds}
        for n, seconds in ((1e3, 6e-4 + 1.5e-6), (1e6, 6e-4 + 1.5e-3), (1e8, 0.1506))
    ],
    "weak_scaling": {
        "model": "MyNet",
        "parameters": 1_000_000,
        "compute_seconds": 0.01,
        "step_seconds": 0.05,
    },
}


@pytest.fixture
def bench(bench_file):
    """Writes the file above with some entries changed, and returns its path."""
    return functools.partial(bench_file, BENCH)


@pytest.fixture
def answer(capsys):
    """Runs `fastnet plan --json` and returns what it prints."""

    def run(*words):
        assert cli.main(["plan", "--json", *map(str, words)]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def candidate(answer, algorithm, grid=None):
    (found,) = (
        entry
        for entry in answer["candidates"]
        if (entry["algorithm"], entry["grid"]) == (algorithm, grid)
    )
    return found


def test_ring_and_torus_by_hand(answer):
    # 2 hosts of 2; 1,000,000 float32 gradients: 4 MB.
    given = ("--ranks", 4, "--hosts", 2, "--parameters", 1_000_000)
    answered = answer(*given, "--compute-ms", 20, *COSTS)
    ring = candidate(answered, "ring")
    # 6 messages of 1 MB over the network at 0.5 GB/s, each after 200 + 50 us; one
    # operation.
    assert (ring["rounds"], ring["messages"], ring["sent_mb"]) == (6, 6, 6.0)
    assert ring["network_mb"] == 6.0
    assert ring["seconds"] == pytest.approx(30e-6 + 6 * 250e-6 + 0.012)
    torus = candidate(answered, "torus", [2, 2])
    # 2 MB to the neighbour and back; 2 x 1 MB over a card that two ranks share;
    # 3 x 4 MB copied; three operations.
    assert (torus["messages"], torus["sent_mb"], torus["network_mb"]) == (4, 6.0, 2.0)
    seconds = 90e-6 + 2 * 100e-6 + 0.004 + 2 * 250e-6 + 2 * 0.004 + 0.0012
    assert torus["seconds"] == pytest.approx(seconds)
    assert ring["chosen"] and not torus["chosen"]
    assert ring["efficiency_no_overlap"] == pytest.approx(20 / 33.53)
    assert ring["efficiency_full_overlap"] == 1.0
    # Half of the bytes on the wire, a card for each.
    answered = answer(*given, "--cards", 2, "--wire-dtype", "bfloat16", *COSTS)
    torus = candidate(answered, "torus", [2, 2])
    assert torus["sent_mb"] == 3.0 and torus["chosen"]
    assert torus["seconds"] == pytest.approx(
        9e-5 + 2e-4 + 0.002 + 5e-4 + 0.002 + 0.0006
    )
    assert "efficiency_no_overlap" not in torus


def test_gradients_travel_in_buckets(answer):
    words = ("--ranks", 4, "--parameters", 1_000_000, *COSTS)
    whole, cut = (
        candidate(answer(*words, "--bucket-bytes", size), "ring")
        for size in (4_000_000, 1_500_000)
    )
    # Three buckets: three times the start, the same bytes.
    assert (whole["messages"], cut["messages"]) == (6, 18)
    assert cut["sent_mb"] == whole["sent_mb"] == 6.0
    more = 2 * (30e-6 + 6 * 100e-6)
    assert cut["seconds"] - whole["seconds"] == pytest.approx(more)


def test_every_factorisation_is_a_candidate(answer):
    answered = answer("--ranks", 12, "--parameters", 10)
    grids = [e["grid"] for e in answered["candidates"] if e["algorithm"] == "torus"]
    assert grids == [[1, 12], [2, 6], [3, 4], [4, 3], [6, 2], [12, 1]]
    assert sum(entry["chosen"] for entry in answered["candidates"]) == 1
    # For ten gradients the algorithm with the fewest messages is the fastest.
    (chosen,) = (e for e in answered["candidates"] if e["chosen"])
    assert chosen["algorithm"] == "gather" and chosen["grid"] in ([3, 4], [4, 3])


def test_ranks_that_share_cores_take_longer(answer):
    words = ("--ranks", 4, "--parameters", 1000, "--compute-ms", 20, *COSTS)
    alone, shared = (
        candidate(answer(*words, "--cores-per-host", cores), "ring") for cores in (4, 2)
    )
    # Except for the six rounds of waiting, in which other ranks compute.
    wait = 6 * 100e-6
    assert shared["seconds"] - wait == pytest.approx(2 * (alone["seconds"] - wait))
    assert shared["efficiency_no_overlap"] == pytest.approx(
        0.020 / (0.040 + shared["seconds"])
    )


def test_bench_file_gives_costs_model_and_time(answer, bench):
    answered = answer("--ranks", 2, "--bench", bench())
    costs = answered["prices"]
    assert costs["host_message"] == pytest.approx(1e-4, rel=1e-3)
    assert costs["network_byte"] == pytest.approx(1e-9, rel=1e-3)
    assert (answered["model"], answered["parameters"]) == ("MyNet", 1_000_000)
    assert answered["topology"]["cores"] == 2
    ring = candidate(answered, "ring")
    # 2 messages and one vector of 4 MB, on a core each, where a step takes 5 ms.
    assert ring["seconds"] == pytest.approx(2e-4 + 4e-3, rel=1e-3)
    assert ring["efficiency_no_overlap"] == pytest.approx(5 / 9.2, rel=1e-3)


def test_stated_costs_override_the_bench_file(answer, bench):
    words = ("--ranks", 8, "--hosts", 2, "--bench", bench())
    answered = answer(*words, "--network-bandwidth-gb", 2, "--compute-ms", 7)
    assert answered["prices"]["network_byte"] == pytest.approx(0.5e-9)
    assert answered["prices"]["host_byte"] == pytest.approx(1e-9, rel=1e-3)
    assert answered["compute_seconds"] == pytest.approx(0.007)
    assert "no network was measured" in answered["prices_from"]


def test_time_of_another_model_is_not_used(answer, bench):
    answered = answer("--ranks", 2, "--bench", bench(), "--parameters", 5)
    assert answered["compute_seconds"] is None


def test_text(fastnet):
    words = ("--ranks", 16, "--hosts", 4, "--parameters", 25_000_000)
    words += ("--bucket-bytes", 100_000_000)
    result = fastnet("plan", *words, "--compute-ms", 100)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert sum("<- chosen" in line for line in lines) == 1
    head = next(line for line in lines if line.startswith("sum "))
    row = next(line for line in lines if re.match(r"torus\s+4x4 ", line))
    # 100 MB: 2 x 75 within the host, 2 x 3 x 100/16 over the network.
    assert row.split()[:6] == ["torus", "4x4", "10", "12", "187.500", "37.500"]
    assert len(row.removesuffix("<- chosen").rstrip()) == len(head)
    assert any(line.startswith("ring") and "%" in line for line in lines)
    without = fastnet("plan", *words)
    assert "Give --compute-ms for the efficiency." in without.stdout


def test_ring_on_a_fast_network_is_called_underestimated(capsys):
    cluster = ["--ranks", "8", "--hosts", "4", "--parameters", "9"]
    for gigabytes, doubted in (("4", False), ("6", True)):
        words = ["plan", *cluster, "--network-bandwidth-gb", gigabytes]
        assert cli.main(words) == 0
        assert ("ring is underestimated" in capsys.readouterr().out) is doubted


def test_keras_application(fastnet):
    result = fastnet("plan", "--ranks", 2, "--model", "mobilenetv2", "--json")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    answered = json.loads(result.stdout)
    # The trainable ones of 3,538,984 in Keras's documentation.
    assert answered["model"] == "MobileNetV2"
    assert answered["parameters"] == 3_504_872
    refused = fastnet("plan", "--ranks", 2, "--model", "resnet5")
    assert refused.returncode == 2
    assert "Received: resnet5. Close to it: ResNet50" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_plot(tmp_path, answer):
    path = tmp_path / "plan.png"
    words = ("--ranks", 24, "--hosts", 4, "--parameters", 1000, "--compute-ms", 5)
    answer(*words, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_plot_fills_a_host_before_the_next():
    from keras_fastnet.scaling.plan_report import _growing

    assert _growing(Topology(4, 6, cards=2)) == [
        *(Topology(1, n, cards=2) for n in (1, 2, 4, 6)),
        *(Topology(n, 6, cards=2) for n in (2, 4)),
    ]


def test_plot_without_matplotlib(monkeypatch, capsys):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    words = ["--ranks", "2", "--parameters", "9", "--compute-ms", "1"]
    assert cli.main(["plan", *words, "--plot", "x.png"]) == 2
    assert 'pip install "keras-fastnet[plot]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no --ranks"),
        ("--ranks 0 --parameters 9", "--ranks must be an integer >= 1. Received: 0."),
        ("--ranks -4 --parameters 9", "Received: -4."),
        ("--ranks 10000000 --parameters 9", "Received: 10,000,000"),
        (
            "--ranks 12 --hosts 5 --parameters 9",
            "Received: --ranks 12 --hosts 5. These fit: 2, 3, 4, 6",
        ),
        ("--ranks 2", "Received: neither"),
        ("--ranks 2 --model A --parameters 9", "Received: both"),
        ("--ranks 2 --parameters -1", "--parameters must be an integer"),
        (
            "--ranks 2 --parameters 9 --latency-us -1",
            "--latency-us must be a fin",
        ),
        ("--ranks 2 --parameters 9 --bandwidth-gb 0", "Received: 0."),
        ("--ranks 2 --parameters 9 --compute-ms nan", "Received: nan."),
        ("--ranks 2 --parameters 9 --network-bandwidth-gb inf", "Received: inf."),
        ("--ranks 2 --parameters 9 --cards 0", "--cards must be an integer"),
        ("--ranks 2 --parameters 9 --cores-per-host 0", "--cores-per-host must"),
        ("--ranks 2 --bench missing.json", "missing.json (No such file"),
        ("--ranks 2 --bench .", "(Is a directory)"),
        ("--ranks 2 --parameters 9 --plot x.png", "no --compute-ms"),
        ("--ranks 2 --parameters 9 --compute-ms 1 --plot x.doc", "x.doc"),
        ("--ranks 2 --parameters 9 --compute-ms 1 --plot no/x.png", "no/x.png"),
    ],
)
def test_invalid_options_are_errors(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", *words.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Received: " in captured.err
    assert len(captured.err.splitlines()) == 1 and not captured.out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 7}, '"format": 1'),
        ({"ranks": 3}, '"ranks"'),
        ({"all_reduce": []}, "with no work"),
        ({"all_reduce": BENCH["all_reduce"][:1]}, "differ enough"),
        ({"weak_scaling": {"model": "A"}}, "'parameters' is missing"),
    ],
)
def test_malformed_bench_files_are_errors(bench, changes, message, capsys):
    words = ["--ranks", "2", "--parameters", "9", "--bench", bench(**changes)]
    assert cli.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and "Received: " in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "many"], "--ranks must be an integer >= 1. Received: many."),
        (["--compute-ms", "x"], "--compute-ms must be a finite number above 0. Rec"),
        (["--wire-dtype", "many"], "--wire-dtype: invalid choice: 'many'"),
        (["--rank", "4"], "unrecognized arguments: --rank 4. Did you mean --ranks?"),
    ],
)
def test_options_that_argparse_rejects(words, message, capsys):
    assert cli.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_help_states_defaults_and_examples(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    text = capsys.readouterr().out
    examples = text.partition("examples:\n")[2].replace("\\\n", " ")
    commands = re.findall(r"^  fastnet (plan .*)$", examples, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        parsed = cli.make_parser().parse_args(command.split())
        assert isinstance(parsed, argparse.Namespace)


def test_nothing_heavy_is_imported_for_an_answer():
    code = (
        "import sys, keras_fastnet.cli as cli\n"
        "cli.main(['plan', '--ranks', '4', '--parameters', '9', '--compute-ms', '1'])\n"
        "heavy = {'keras', 'numpy', 'tensorflow', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.stdout.endswith("\n[]\n"), result.stderr


def test_published_table(fastnet):
    result = fastnet("plan", "--published")
    assert result.returncode == 0, result.stderr
    rows = dict(re.findall(r"^(\S.*?\d)  +(\d.* %.*)$", result.stdout, re.MULTILINE))
    assert set(rows) == {
        *("Facebook 2017", "Berkeley/TACC 2017", "IBM DDL 2017"),
        *("Sony 2018, 1,088", "Sony 2018, 3,264"),
    }
    assert "91.6 %" in rows["Sony 2018, 1,088"]
    assert {"published", "assumed"} <= set(result.stdout.split())
    listed = json.loads(fastnet("plan", "--published", "--json").stdout)
    assert [entry["name"] for entry in listed] == [s.name for s in PUBLISHED_SYSTEMS]
    for entry in listed:
        for value in entry.values():
            assert not isinstance(value, dict) or value.get("source", "-")


def test_prediction_of_facebook_by_hand():
    facebook = PUBLISHED_SYSTEMS[0]
    compute = 32 / 195
    # A ring of 8 on one host; then rows of 8, columns of 32 with eighths of 100 MB,
    # eight of them on one card.
    alone = 14 * (3.4e-6 + 100e6 / 8 / 18.3e9)
    row = 8 * 3.4e-6 + 14 * 100e6 / 8 / 18.3e9
    column = 62 * (30e-6 + 8 * 100e6 / 256 / 6.25e9)
    together = row + column + 3 * 100e6 / 732e9
    prediction = predict(facebook)
    assert prediction.algorithm == "torus 32x8"
    assert prediction.all_reduce_seconds == pytest.approx(together)
    efficiency = (compute + alone) / (compute + together)
    assert prediction.no_overlap == pytest.approx(efficiency)
    assert prediction.full_overlap == 1.0
