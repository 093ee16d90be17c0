"""Compares the cost model with four published systems.

python benchmarks/plan/published.py     # a second; prints what published.txt holds

No value is fitted: each was published, or is an assumption whose source is stated. It
prints the published and the predicted efficiency and their difference.
"""

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from keras_fastnet.collectives.cost_model import (
    PIPELINING,
    Topology,
    UnitCosts,
    all_reduce_seconds,
)
from keras_fastnet.collectives.grid_choice import cheapest_algorithm, cheapest_grid
from keras_fastnet.text import fact, table


@dataclasses.dataclass(frozen=True)
class Value:
    """A number and its source.

    Attributes:
        number: The number.
        published: Whether the system's own publication, or a report of it, states the
            number. Otherwise it is assumed here.
        source: The place in the publication, or the reason for the assumption.
    """

    number: float
    published: bool
    source: str


@dataclasses.dataclass(frozen=True)
class PublishedSystem:
    """A training run whose scaling efficiency was published.

    Attributes:
        name: The system and the year.
        paper: The paper, and which parts of it were read.
        topology: The ranks' hosts and their network cards.
        layout: The ranks per host, and the source of the topology.
        baseline: The number of ranks, on one host, that efficiency is relative to.
        efficiency: The published efficiency.
        gradient_bytes: Bytes of one rank's gradients.
        compute_ms: Milliseconds of a step without communication.
        host_latency_us: Microseconds of a message within a host.
        host_gb: Gigabytes a second within a host.
        network_latency_us: Microseconds of a message between hosts.
        network_gb: Gigabytes a second of one network card.
        copy_gb: Gigabytes a second of copies in memory.
        left_out: Properties of the run that the model ignores.
    """

    name: str
    paper: str
    topology: Topology
    layout: Value
    baseline: Value
    efficiency: Value
    gradient_bytes: Value
    compute_ms: Value
    host_latency_us: Value
    host_gb: Value
    network_latency_us: Value
    network_gb: Value
    copy_gb: Value
    left_out: str

    @property
    def costs(self) -> UnitCosts:
        """The hardware's unit costs. Each round costs the latency, which includes the
        start of a collective."""
        return UnitCosts(
            host_round=self.host_latency_us.number * 1e-6,
            host_message=0.0,
            host_byte=1e-9 / self.host_gb.number,
            network_round=self.network_latency_us.number * 1e-6,
            network_message=0.0,
            network_byte=1e-9 / self.network_gb.number,
            copied_byte=1e-9 / self.copy_gb.number,
            collective=0.0,
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the model predicts for a published system.

    Attributes:
        algorithm: The chosen algorithm and grid.
        all_reduce_seconds: Time of the all-reduce over all ranks.
        no_overlap: Efficiency if communication follows computation.
        pipelined: The same with the term for pipelining that NCCL's times have.
        full_overlap: Efficiency if communication runs at the same time.
    """

    algorithm: str
    all_reduce_seconds: float
    no_overlap: float
    pipelined: float
    full_overlap: float


def predict(system: PublishedSystem) -> Prediction:
    """Returns the efficiency that the model predicts, relative to the same baseline."""
    compute = system.compute_ms.number * 1e-3
    alone, alone_pipelined, _ = _all_reduce(
        system, Topology(1, int(system.baseline.number))
    )
    together, pipelined, algorithm = _all_reduce(system, system.topology)
    return Prediction(
        algorithm=algorithm,
        all_reduce_seconds=together,
        no_overlap=(compute + alone) / (compute + together),
        pipelined=(compute + alone_pipelined) / (compute + pipelined),
        full_overlap=max(compute, alone) / max(compute, together),
    )


def _all_reduce(
    system: PublishedSystem, topology: Topology
) -> tuple[float, float, str]:
    """Returns the predicted seconds, those with pipelining, and the algorithm."""
    nbytes = system.gradient_bytes.number
    grid = cheapest_grid(topology, system.costs, nbytes)
    algorithm = cheapest_algorithm(grid, topology, system.costs, nbytes)
    seconds, waiting = (
        all_reduce_seconds(algorithm, grid, topology, system.costs, size)
        for size in (nbytes, 0)
    )
    pipelined = seconds + PIPELINING * math.sqrt(waiting * (seconds - waiting))
    name = "ring" if algorithm == "ring" else f"{algorithm} {grid}"
    return seconds, pipelined, name


_RESNET_BYTES = Value(
    25_557_032 * 4, False, "ResNet-50's 25,557,032 trainable parameters, float32"
)
_P100_STEP = Value(
    32 / 195 * 1e3,
    False,
    "32 images at the 195 a second of one P100 at a batch of 32 in TensorFlow's "
    "benchmarks of 2017 (DGX-1, synthetic data)",
)
_P100_MEMORY = Value(732.0, False, "NVIDIA's data sheet of the P100")
_P100_LINK = Value(
    18.3, False, "one NVLink between two P100, measured by Dell's HPC laboratory"
)
_NVLINK_LATENCY = Value(3.4, False, "NCCL's own tuning table: ring, NVLink")
_INFINIBAND_LATENCY = Value(14.0, False, "NCCL's own tuning table: ring, network")

_FACEBOOK = PublishedSystem(
    name="Facebook 2017",
    paper="Goyal et al., arXiv 1706.02677, read in full",
    topology=Topology(hosts=32, ranks_per_host=8),
    layout=Value(8, True, "section 4.3: 8 P100 in a server"),
    baseline=Value(8, True, "abstract: from 8 to 256 GPUs"),
    efficiency=Value(0.90, True, 'abstract: "~90 %"'),
    gradient_bytes=Value(100e6, True, "section 4.3: 100 MB"),
    compute_ms=_P100_STEP,
    host_latency_us=_NVLINK_LATENCY,
    host_gb=_P100_LINK,
    network_latency_us=Value(30.0, False, "a TCP message between two servers"),
    network_gb=Value(6.25, True, "section 4.3: 50 Gbit Ethernet"),
    copy_gb=_P100_MEMORY,
    left_out="the overlap with backpropagation that section 4 describes; halving and "
    "doubling in place of the ring between servers; slow workers, input",
)

_IBM = PublishedSystem(
    name="IBM DDL 2017",
    paper="Cho et al., arXiv 1708.02188, abstract and reports only",
    topology=Topology(hosts=64, ranks_per_host=4),
    layout=Value(4, True, "abstract: 64 servers, 256 GPUs"),
    baseline=Value(4, False, "one server"),
    efficiency=Value(0.95, True, "IBM's announcement, for Caffe"),
    gradient_bytes=_RESNET_BYTES,
    compute_ms=_P100_STEP,
    host_latency_us=_NVLINK_LATENCY,
    host_gb=_P100_LINK,
    network_latency_us=_INFINIBAND_LATENCY,
    network_gb=Value(12.5, False, "one 100 Gbit InfiniBand card a server"),
    copy_gb=_P100_MEMORY,
    left_out="which network the 95 % are of, and how much of the communication was "
    "hidden; slow workers, input",
)

_BERKELEY = PublishedSystem(
    name="Berkeley/TACC 2017",
    paper="You et al., arXiv 1709.05011, abstract and reports only",
    topology=Topology(hosts=1024, ranks_per_host=1),
    layout=Value(1, False, "one rank and one network card for each of 1,024 CPUs"),
    baseline=Value(1, False, "one CPU"),
    efficiency=Value(0.73, True, "at 1,024 CPUs; taken as AlexNet's"),
    gradient_bytes=Value(61e6 * 4, False, "AlexNet's 61 million parameters, float32"),
    compute_ms=Value(
        11 * 60 / (100 * 1_281_167 / 32_768) * 1e3,
        False,
        "the whole step of the published run (AlexNet, 100 epochs in 11 minutes, "
        "batch 32K): it holds the communication too, so efficiency is overestimated",
    ),
    host_latency_us=Value(5.0, False, "not used: one rank a host"),
    host_gb=Value(10.0, False, "not used: one rank a host"),
    network_latency_us=Value(5.0, False, "an MPI message over Omni-Path"),
    network_gb=Value(12.5, False, "one 100 Gbit Omni-Path card"),
    copy_gb=Value(50.0, False, "a round figure for one Skylake socket"),
    left_out="the speed of one CPU alone, the all-reduce that was used, overlap, slow "
    "workers, input",
)

_SONY = PublishedSystem(
    name="Sony 2018, 1,088",
    paper="Mikami et al., arXiv 1811.05233, abstract and reports only",
    topology=Topology(hosts=272, ranks_per_host=4, cards=2),
    layout=Value(4, True, "ABCI: 4 V100 and 2 InfiniBand EDR cards in a node"),
    baseline=Value(4, True, "one node"),
    efficiency=Value(0.9162, True, "at 1,088 GPUs"),
    gradient_bytes=Value(
        25_557_032 * 2, False, "ResNet-50's trainable parameters, float16"
    ),
    compute_ms=Value(
        32 / 650 * 1e3,
        False,
        "32 images at 650 a second on one V100, a guess: NVIDIA reports 1,376 at a "
        "batch of 192 with software of 2020",
    ),
    host_latency_us=_NVLINK_LATENCY,
    host_gb=Value(
        47.9, False, "two NVLinks between two V100, measured by Dell's HPC laboratory"
    ),
    network_latency_us=_INFINIBAND_LATENCY,
    network_gb=Value(12.5, True, "100 Gbit for each InfiniBand EDR card"),
    copy_gb=Value(900.0, False, "NVIDIA's data sheet of the V100"),
    left_out="the grid that was used (rows may be longer than a node), the network "
    "above a rack with a third of the bandwidth, overlap, slow workers, input",
)

PUBLISHED_SYSTEMS = (
    _FACEBOOK,
    _BERKELEY,
    _IBM,
    _SONY,
    dataclasses.replace(
        _SONY,
        name="Sony 2018, 3,264",
        topology=Topology(hosts=816, ranks_per_host=4, cards=2),
        efficiency=Value(0.5247, True, "at 3,264 GPUs"),
    ),
)


def as_text() -> str:
    """Returns the published systems and the predictions as text."""
    head = ("", "ranks", "published", "no overlap", "pipelined", "full overlap")
    rows: list[Sequence[str]] = [head]
    notes: list[str] = []
    for system in PUBLISHED_SYSTEMS:
        prediction = predict(system)
        stated = system.efficiency.number
        shown = (prediction.no_overlap, prediction.pipelined, prediction.full_overlap)
        rows.append(
            (
                system.name,
                f"{system.topology.ranks:,}",
                f"{100 * stated:.1f} %",
                *(f"{100 * value:.1f} %" for value in shown),
            )
        )
        notes += ["", f"{system.name}: {system.paper}"]
        values = {
            "efficiency": (system.efficiency, "{:.4g}"),
            "ranks a host": (system.layout, "{:.0f}"),
            "baseline": (system.baseline, "{:.0f}"),
            "gradients": (system.gradient_bytes, "{:,.0f} B"),
            "computation": (system.compute_ms, "{:.0f} ms"),
            "in a host": (system.host_latency_us, "{:.1f} us"),
            "": (system.host_gb, "{:.1f} GB/s"),
            "network": (system.network_latency_us, "{:.1f} us"),
            " ": (system.network_gb, "{:.2f} GB/s a card"),
            "copies": (system.copy_gb, "{:.0f} GB/s"),
        }
        for name, value in values.items():
            notes += _value(name, *value)
        notes.append(
            fact(
                "  model",
                f"{prediction.algorithm}, "
                f"{prediction.all_reduce_seconds * 1e3:.1f} ms of all-reduce",
            )
        )
        notes += _wrapped(f"{'  left out':<16}", system.left_out)
    legend = [
        "Published and predicted weak-scaling efficiency; no value is fitted.",
        "",
    ]
    return "\n".join([*legend, *table(rows, left=1), *notes])


def _value(name: str, value: Value, form: str) -> list[str]:
    origin = "published" if value.published else "assumed"
    number = form.format(value.number)
    return _wrapped(f"  {name.strip():<14}{number:<18}{origin:<10}", value.source)


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=start, subsequent_indent=" " * len(start)
    )


if __name__ == "__main__":
    print(as_text())
