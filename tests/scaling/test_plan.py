"""`fastnet plan`: its predictions against arithmetic by hand, and its errors."""

import dataclasses
import importlib.util
import json
import math
import re
import subprocess
import sys

import pytest

from keras_fastnet import cli
from keras_fastnet.collectives.cost_model import Topology
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.nccl_model import nccl_all_reduce_seconds
from keras_fastnet.scaling.plan import Gradients, Nccl, make_plan
from tests.documentation import ROOT

COSTS = {
    "host_round": 100e-6,
    "host_message": 0.0,
    "host_byte": 1e-9,
    "network_round": 200e-6,
    "network_message": 50e-6,
    "network_byte": 2e-9,
    "copied_byte": 1e-10,
    "collective": 30e-6,
}
MILLION = Gradients(1_000_000)


def candidate(plan, name, grid=None):
    (found,) = (c for c in plan.candidates() if (c.name, c.grid) == (name, grid))
    return found


def shown(capsys, words):
    """Returns what `fastnet plan` prints."""
    assert cli.main(["plan", *words.split()]) == 0
    return capsys.readouterr().out


def test_ring_and_torus_by_hand():
    # 2 hosts of 2; 1,000,000 float32 gradients: 4 MB.
    plan = make_plan(Topology(2, 2), MILLION, stated_costs=COSTS)
    ring = candidate(plan, "ring")
    # 6 messages of 1 MB over the network at 0.5 GB/s, each after 200 + 50 us; one
    # operation.
    assert ring.network_mb == 6.0 and ring.chosen
    assert ring.seconds == pytest.approx(30e-6 + 6 * 250e-6 + 0.012)
    torus = candidate(plan, "torus", Grid(2, 2))
    # 2 MB to the neighbour and back; 2 x 1 MB over a card that two ranks share;
    # 3 x 4 MB copied; three operations.
    seconds = 90e-6 + 2 * 100e-6 + 0.004 + 2 * 250e-6 + 2 * 0.004 + 0.0012
    assert torus.network_mb == 2.0 and not torus.chosen
    assert torus.seconds == pytest.approx(seconds)
    assert plan.step_seconds(0.02, ring.seconds) == pytest.approx((0.03353, 0.02))
    # Half of the bytes on the wire, a card for each.
    halves = dataclasses.replace(MILLION, wire_dtype="bfloat16")
    plan = make_plan(Topology(2, 2, cards=2), halves, stated_costs=COSTS)
    torus = candidate(plan, "torus", Grid(2, 2))
    assert torus.chosen
    assert torus.seconds == pytest.approx(9e-5 + 2e-4 + 0.002 + 5e-4 + 0.002 + 0.0006)


def test_bench_file_gives_costs_and_cores(bench_file):
    bench = [bench_file()]
    plan = make_plan(Topology(1, 2), MILLION, bench_files=bench)
    assert plan.topology.cores == 2
    ring = candidate(plan, "ring").seconds
    # 2 messages and one vector of 4 MB, on a core each.
    assert ring == pytest.approx(2e-4 + 4e-3, rel=1e-3)
    assert plan.step_seconds(0.005, ring)[0] == pytest.approx(9.2e-3, rel=1e-3)
    # Four ranks compute on two cores.
    plan = make_plan(Topology(1, 4), MILLION, bench_files=bench)
    assert plan.step_seconds(0.005, 0.0)[0] == pytest.approx(0.01)
    stated = make_plan(
        Topology(2, 4), MILLION, bench_files=bench, stated_costs={"network_byte": 5.0}
    )
    assert stated.costs.network_byte == 5.0
    assert stated.costs.host_byte == pytest.approx(1e-9, rel=1e-3)
    assert "no network was measured" in stated.costs_from


def test_nccl_by_hand(capsys):
    # 69 us; 100 MB at 250 GB/s take 400 us.
    nccl = Nccl(69e-6, 250e9)
    gradients = Gradients(25_000_000, bucket_bytes=50_000_000)
    found = make_plan(Topology(2, 8), gradients, nccl=nccl).candidates()
    seconds = {c.name: c.seconds for c in found}
    whole = 69e-6 + 1.2 * math.sqrt(69e-6 * 400e-6) + 400e-6
    halves = 2 * (69e-6 + 1.2 * math.sqrt(69e-6 * 200e-6) + 200e-6)
    assert seconds["1 x 100.0 MB"] == pytest.approx(whole)
    assert seconds["2 x 50.0 MB"] == pytest.approx(halves)
    assert [c.name for c in found if c.chosen] == ["2 x 50.0 MB"]
    words = "--ranks 16 --hosts 2 --parameters 25000000 --nccl-us 69 --nccl-gb 250"
    text = shown(capsys, words)
    # TorusStrategy's buckets of 64 MiB.
    assert re.search(rf"^2 x 50.0 MB +{1e3 * halves:.3f}  <- chosen$", text, re.M)
    assert "69.0 us, 250.0 GB/s" in text and "torus" not in text


def benchmark(name):
    """Returns a script of benchmarks/plan as a module."""
    path = ROOT / "benchmarks" / "plan" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_published_times_of_nccl_are_predicted():
    """A median under 15 %, the worst under 40 %, as docs/plan.md states."""
    nccl = benchmark("nccl")
    systems = nccl.published()
    assert len(systems) == 6
    for times in systems.values():
        found = nccl.sizes_held_out(times)
        assert found["median"] < 0.15 and found["worst"] < 0.40 and found["sizes"] > 10
    # The recorded results are those of this model.
    recorded = json.loads((ROOT / "benchmarks" / "plan" / "nccl.json").read_text())
    latency, bandwidth, factor = nccl.fit(systems["H100, p5, EFA"])
    assert recorded["H100, p5, EFA"]["pipelining"] == round(
        factor, 2
    )  # 16 MiB, as published.
    predicted = nccl_all_reduce_seconds(latency, bandwidth, 2**24, factor)
    assert predicted == pytest.approx(298.1e-6, rel=0.15)


def test_prediction_of_facebook_by_hand():
    published = benchmark("published")
    facebook = published.PUBLISHED_SYSTEMS[0]
    compute = 32 / 195
    # A ring of 8 on one host; then rows of 8, columns of 32 with eighths of 100 MB,
    # eight of them on one card.
    alone = 14 * (3.4e-6 + 100e6 / 8 / 18.3e9)
    row = 8 * 3.4e-6 + 14 * 100e6 / 8 / 18.3e9
    column = 62 * (30e-6 + 8 * 100e6 / 256 / 6.25e9)
    together = row + column + 3 * 100e6 / 732e9
    prediction = published.predict(facebook)
    assert prediction.algorithm == "torus 32x8"
    assert prediction.all_reduce_seconds == pytest.approx(together)
    efficiency = (compute + alone) / (compute + together)
    assert prediction.no_overlap == pytest.approx(efficiency)
    recorded = (ROOT / "benchmarks" / "plan" / "published.txt").read_text()
    assert recorded == published.as_text() + "\n"


def test_text(capsys):
    words = "--ranks 16 --hosts 4 --parameters 25000000 --bucket-bytes 100000000"
    lines = shown(capsys, f"{words} --compute-ms 100").splitlines()
    assert sum("<- chosen" in line for line in lines) == 1
    row = next(line for line in lines if re.match(r"torus\s+4x4 ", line))
    # Of 100 MB 2 x 3 x 100/16 over the network.
    assert row.split()[:3] == ["torus", "4x4", "37.500"]
    milliseconds = [float(number) for number in row.split()[3:5]]
    assert milliseconds[1] == pytest.approx(100 + milliseconds[0], abs=0.1)
    assert row.split()[5:7] == [f"{1e4 / milliseconds[1]:.1f}", "%"]
    assert "Give --compute-ms" in shown(capsys, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--parameters 9", "Received: no --ranks"),
        (
            "--ranks 12 --hosts 5 --parameters 9",
            "Received: --ranks 12 --hosts 5. These fit: 2, 3, 4, 6",
        ),
        ("--ranks 2", "Received: no --model"),
        (
            "--ranks 2 --parameters 9 --nccl-us -1",
            "--nccl-us must be a finite number above 0",
        ),
        ("--ranks 2 --parameters 9 --nccl-us 5", "Received: only one of"),
        ("--ranks 2 --parameters 9 --device-batch 8", "Received: no --model"),
        ("--ranks 2 --parameters 9 --bench no.json", "no.json (FileNotFoundError"),
        ("--ranks 2 --model resnet5", "Received: resnet5. Close to it: ResNet50"),
    ],
)
def test_invalid_options_are_errors(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", *words.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


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
