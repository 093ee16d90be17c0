"""What `fastnet plan` is asked: its arguments, checked and completed."""

import argparse
import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator

from keras_fastnet.collectives.cost_model import WIRE_BYTES, Topology, UnitCosts
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling.applications import application_named

DEFAULT_PRICES = {
    "latency_us": 10.0,
    "overhead_us": 10.0,
    "bandwidth_gb": 5.0,
    "network_latency_us": 40.0,
    "network_overhead_us": 10.0,
    "network_bandwidth_gb": 1.25,
    "copy_bandwidth_gb": 10.0,
    "collective_us": 20.0,
}
"""Round figures for servers with 10 Gbit Ethernet."""
_FIELDS = {
    "latency_us": "host_round",
    "overhead_us": "host_message",
    "bandwidth_gb": "host_byte",
    "network_latency_us": "network_round",
    "network_overhead_us": "network_message",
    "network_bandwidth_gb": "network_byte",
    "copy_bandwidth_gb": "copied_byte",
    "collective_us": "collective",
}
_MOST_RANKS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Question:
    """A cluster, a model and a machine's prices.

    Attributes:
        topology: The ranks' hosts.
        model: Name of the model, or None.
        parameters: Number of gradients.
        wire_dtype: Their dtype when sent.
        bucket_bytes: Size of a bucket of gradients, before that.
        prices: The machine's prices.
        prices_from: Where the prices come from.
        compute_seconds: A step of one rank alone, if it is known.
        compute_from: Where that time comes from.
    """

    topology: Topology
    model: str | None
    parameters: int
    wire_dtype: str
    bucket_bytes: int
    prices: UnitCosts
    prices_from: str
    compute_seconds: float | None
    compute_from: str

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's gradients."""
        return self.parameters * WIRE_BYTES[self.wire_dtype]

    @property
    def buckets(self) -> int:
        """In how many buckets they are sent."""
        return math.ceil(self.parameters * WIRE_BYTES["float32"] / self.bucket_bytes)


def question_of(arguments: argparse.Namespace) -> Question:
    """Returns the question that the command line asks.

    Raises:
        UsageError: An argument is missing or wrong.
    """
    _check_numbers(arguments)
    try:
        return _complete(arguments)
    except UsageError:
        raise
    except ValueError as error:
        # The bench files'.
        raise UsageError(str(error)) from error


def _complete(arguments: argparse.Namespace) -> Question:
    ranks, hosts = arguments.ranks, arguments.hosts
    if ranks is None:
        raise UsageError(
            "--ranks N must say how many ranks there are. Received: no --ranks. "
            "Write, for example, `fastnet plan --ranks 8 --parameters 25000000`."
        )
    if ranks > _MOST_RANKS:
        raise UsageError(
            f"--ranks must be at most {_MOST_RANKS:,}. Received: {ranks:,}. "
            "Give the size of a cluster that exists."
        )
    if ranks % hosts:
        raise UsageError(
            "--hosts must divide --ranks, so that all hosts have equally many. "
            f"Received: --ranks {ranks} --hosts {hosts}. "
            f"These fit: {', '.join(_divisors_near(ranks, hosts))}."
        )
    measurements, steps = _benches(arguments.bench)
    measured_cores = {m.topology.cores for m in measurements}
    cores = arguments.cores_per_host
    if cores is None and len(measured_cores) == 1:
        cores = measured_cores.pop()
    model, parameters = arguments.model, arguments.parameters
    if model is not None and parameters is not None:
        raise UsageError(
            "--model and --parameters both say how many gradients there are. "
            "Received: both. Give one of them."
        )
    if model is None and parameters is None:
        if not steps:
            raise UsageError(
                "--model NAME or --parameters P must say how many gradients there "
                "are. Received: neither, and no --bench with a model. "
                "Write, for example, `--model ResNet50`."
            )
        model, parameters = steps[0].model, steps[0].parameters
    elif model is not None:
        model, parameters = _count_parameters(model)
    compute, compute_from = _compute(arguments.compute_ms, steps, model, parameters)
    prices, prices_from = _prices(arguments, measurements)
    return Question(
        topology=Topology(hosts, ranks // hosts, arguments.cards, cores),
        model=model,
        parameters=parameters,
        wire_dtype=arguments.wire_dtype,
        bucket_bytes=arguments.bucket_bytes,
        prices=prices,
        prices_from=prices_from,
        compute_seconds=compute,
        compute_from=compute_from,
    )


def _check_numbers(arguments: argparse.Namespace) -> None:
    counts = ("ranks", "hosts", "cards", "cores_per_host")
    integers = (*counts, "parameters", "bucket_bytes")
    for name in (*integers, *DEFAULT_PRICES, "compute_ms"):
        value = getattr(arguments, name)
        if value is None or 0 < value < math.inf:
            continue
        kind = "an integer >= 1" if name in integers else "a number above 0"
        if name.endswith("_us"):
            if value == 0:
                continue
            kind = "a number >= 0"
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} must be {kind}. Received: {value:g}. "
            "Leave it out for the default, where it has one."
        )


def _divisors_near(ranks: int, hosts: int) -> list[str]:
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [str(n) for n in sorted(sorted(divisors, key=lambda n: abs(n - hosts))[:4])]


def _benches(paths: list[str]) -> tuple[list, list]:
    """Returns the timed all-reduces and training steps of all files."""
    if not paths:
        return [], []
    # NumPy takes a tenth of a second that help and refusals need not wait for.
    from keras_fastnet.scaling.price_fit import read_measurements, read_weak_scaling

    return (
        [measured for path in paths for measured in read_measurements(path)],
        [found for path in paths if (found := read_weak_scaling(path))],
    )


def _compute(
    compute_ms: float | None, steps: list, model: str | None, parameters: int
) -> tuple[float | None, str]:
    if compute_ms is not None:
        return compute_ms * 1e-3, "--compute-ms"
    for step in steps:
        if step.model == model or step.parameters == parameters:
            return step.compute_seconds, f"measured with {step.model}"
    return None, ""


def _prices(arguments: argparse.Namespace, measurements: list) -> tuple[UnitCosts, str]:
    given = {
        name: value
        for name in DEFAULT_PRICES
        if (value := getattr(arguments, name)) is not None
    }
    sources = []
    if arguments.bench:
        from keras_fastnet.scaling.price_fit import fit_prices

        prices = fit_prices(measurements)
        sources.append(f"fitted to {len(measurements)} measurements")
        if all(m.topology.hosts == 1 for m in measurements) and arguments.hosts > 1:
            sources.append("no network was measured")
    else:
        prices = _priced(DEFAULT_PRICES)
        sources += ["defaults"] if len(given) < len(DEFAULT_PRICES) else []
    stated = _priced({**DEFAULT_PRICES, **given})
    changes = {_FIELDS[name]: getattr(stated, _FIELDS[name]) for name in given}
    if given:
        options = ("--" + name.replace("_", "-") for name in given)
        sources.append("stated by " + " ".join(options))
    return dataclasses.replace(prices, **changes), ", ".join(sources)


def _priced(units: dict[str, float]) -> UnitCosts:
    """Returns prices from microseconds and gigabytes a second."""
    return UnitCosts(
        **{
            field: units[name] * 1e-6 if name.endswith("us") else 1e-9 / units[name]
            for name, field in _FIELDS.items()
        }
    )


def _count_parameters(name: str) -> tuple[str, int]:
    """Returns a Keras application's full name and its number of gradients."""
    with _silent_stderr():
        from keras_fastnet._keras.keras_api import keras

    found = application_named(
        name, dir(keras.applications), "For other models, give --parameters."
    )
    with _silent_stderr():
        model = getattr(keras.applications, found)(weights=None)
    return found, sum(math.prod(weight.shape) for weight in model.trainable_weights)


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hides what TensorFlow's C++ says about GPUs before its log level counts."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
