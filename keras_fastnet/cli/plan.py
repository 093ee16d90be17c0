"""`fastnet plan`: predicts the efficiency of a cluster."""

import argparse
import dataclasses

from keras_fastnet.cli.option_types import integer, number
from keras_fastnet.collectives.cost_model import WIRE_BYTES, Topology
from keras_fastnet.collectives.grid_choice import (
    DEFAULT_BUCKET_BYTES,
    NCCL_BUCKET_BYTES,
)
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling import memory, plan_report
from keras_fastnet.scaling.applications import application
from keras_fastnet.scaling.plan import DEFAULT_COSTS, Gradients, Nccl, make_plan

_DESCRIPTION = """\
Predict what summing the gradients costs on a cluster, which grid TorusStrategy would
choose there, how long a step would take and how much memory a replica needs. Nothing is
run. Costs are those that `fastnet bench` measured, or are stated.
"""

_EPILOG = """\
examples:
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --compute-ms 160
      eight hosts of eight ranks on CPUs, with 10 Gbit Ethernet
  fastnet plan --ranks 16 --bench bench.json
      costs, model and computing time as measured by `fastnet bench`
  fastnet plan --ranks 16 --hosts 2 --model ResNet50 --compute-ms 50 \\
      --nccl-us 69 --nccl-gb 260
      GPUs, with the times of nccl-tests
  fastnet plan --ranks 64 --model ResNet50 --device-batch 32 --precision mixed_float16
      also estimate the memory of a replica
"""
_MOST_RANKS = 1_000_000


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="predict the efficiency of a cluster and the grid to choose",
        usage="fastnet plan --ranks N (--model NAME | --parameters P | --bench FILE) "
        "[options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    count = integer(at_least=1, example=8)
    for flag, letter, default, meaning in (
        ("ranks", "N", None, "number of ranks"),
        ("hosts", "H", 1, "number of hosts, with equally many ranks each (default: 1)"),
        ("cards", "C", 1, "network cards of each host (default: 1)"),
        (
            *("cores-per-host", "K", None),
            "processor cores of each host, if ranks compute on them: more ranks than "
            "cores take longer (default: those of --bench, else enough)",
        ),
    ):
        parser.add_argument(
            f"--{flag}",
            type=count,
            default=default,
            metavar=letter,
            help=meaning,
        )
    _add_model(parser.add_argument_group("model"))
    _add_costs(parser.add_argument_group("costs"))
    parser.set_defaults(execute=execute)


def _add_model(model: "argparse._ArgumentGroup") -> None:
    count = integer(at_least=1, example=8)
    size = model.add_mutually_exclusive_group()
    size.add_argument(
        "--model",
        metavar="NAME",
        help="one of Keras's applications, such as ResNet50 (default: that of --bench)",
    )
    size.add_argument(
        "--parameters",
        type=count,
        metavar="P",
        help="number of trainable parameters, instead of --model",
    )
    model.add_argument(
        "--wire-dtype",
        choices=WIRE_BYTES,
        default="float32",
        help="dtype in which gradients are sent (default: %(default)s)",
    )
    model.add_argument(
        "--bucket-bytes",
        type=count,
        metavar="B",
        help="size of a bucket of gradients, as sent (default: TorusStrategy's)",
    )
    model.add_argument(
        "--compute-ms",
        type=number(above=0.0, example=160.0),
        metavar="MS",
        help="milliseconds of one step on one rank alone, for the efficiency "
        "(default: that of --bench)",
    )
    model.add_argument(
        "--device-batch",
        type=count,
        metavar="B",
        help="examples of one replica in one step, to show the memory of --model",
    )
    model.add_argument(
        "--optimizer",
        choices=memory.SLOTS,
        default="lars",
        help="for the memory (default: %(default)s)",
    )
    model.add_argument(
        "--precision",
        choices=("float32", "mixed_float16", "mixed_bfloat16"),
        default="float32",
        help="dtype policy, for the memory (default: %(default)s)",
    )


_LINKS = (
    ("latency-us", "host_round", "microseconds until a message within a host arrives"),
    ("bandwidth-gb", "host_byte", "gigabytes per second of a rank within a host"),
    ("network-latency-us", "network_round", "--latency-us between hosts"),
    ("network-bandwidth-gb", "network_byte", "gigabytes per second of a network card"),
)


def _add_costs(costs: "argparse._ArgumentGroup") -> None:
    costs.add_argument(
        "--bench",
        action="append",
        default=[],
        metavar="FILE",
        help="results that `fastnet bench` wrote; several files are fitted together",
    )
    for flag, field, meaning in _LINKS:
        default = getattr(DEFAULT_COSTS, field)
        default = default * 1e6 if flag.endswith("us") else 1e-9 / default
        costs.add_argument(
            f"--{flag}",
            type=number(example=default, **_bound(flag)),
            metavar="US" if flag.endswith("us") else "GB",
            help=f"{meaning} (default without --bench: {default:g})",
        )
    for flag, meaning in (
        ("nccl-us", "microseconds of NCCL's all-reduce of a few bytes"),
        ("nccl-gb", "gigabytes per second of a long one: algbw of nccl-tests"),
    ):
        costs.add_argument(
            f"--{flag}",
            type=number(example=60.0, above=0.0),
            metavar="US" if flag.endswith("us") else "GB",
            help=f"{meaning}, over all ranks; then NCCL sums, as on GPUs",
        )


def _bound(flag: str) -> dict[str, float]:
    return {"at_least": 0.0} if flag.endswith("us") else {"above": 0.0}


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet plan` and returns its exit code."""
    topology = _topology(arguments)
    if (arguments.nccl_us is None) != (arguments.nccl_gb is None):
        raise UsageError(
            "NCCL's all-reduce has a latency and a bandwidth. Received: only one of "
            "--nccl-us and --nccl-gb. Give both, as nccl-tests measures them."
        )
    nccl = None
    if arguments.nccl_us is not None:
        nccl = Nccl(arguments.nccl_us * 1e-6, arguments.nccl_gb * 1e9)
    gradients, needed = _model(arguments)
    compute = arguments.compute_ms
    try:
        plan = make_plan(
            topology,
            gradients,
            nccl=nccl,
            compute_seconds=None if compute is None else compute * 1e-3,
            bench_files=arguments.bench,
            stated_costs=_stated(arguments),
        )
    except ValueError as error:
        # A file of --bench cannot be read, or its measurements are too few.
        raise UsageError(str(error)) from error
    size = arguments.bucket_bytes or (
        DEFAULT_BUCKET_BYTES if nccl is None else NCCL_BUCKET_BYTES
    )
    sent = dataclasses.replace(
        plan.gradients, bucket_bytes=size, wire_dtype=arguments.wire_dtype
    )
    print(plan_report.as_text(dataclasses.replace(plan, gradients=sent), needed))
    return 0


def _topology(arguments: argparse.Namespace) -> Topology:
    ranks, hosts = arguments.ranks, arguments.hosts
    if ranks is None:  # Not `argparse`'s error, which hides misspelt options.
        raise UsageError(
            "--ranks N must give the number of ranks. Received: no --ranks. "
            "Write, for example, `fastnet plan --ranks 8 --parameters 25000000`."
        )
    if ranks > _MOST_RANKS:
        raise UsageError(
            f"--ranks must be at most {_MOST_RANKS:,}. Received: {ranks:,}. "
            "Give the size of a cluster that exists."
        )
    if ranks % hosts:
        divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - hosts))[:4])
        raise UsageError(
            "--hosts must divide --ranks, so that all hosts have equally many. "
            f"Received: --ranks {ranks} --hosts {hosts}. "
            f"These fit: {', '.join(map(str, near))}."
        )
    return Topology(hosts, ranks // hosts, arguments.cards, arguments.cores_per_host)


def _model(
    arguments: argparse.Namespace,
) -> tuple[Gradients | None, memory.Memory | None]:
    """Returns what is sent, and the memory that is needed, as far as they are known."""
    name, batch = arguments.model, arguments.device_batch
    if batch is not None and name is None:
        raise UsageError(
            "--device-batch needs a model, whose layers are built to sum their "
            "outputs. Received: no --model. Give --model NAME."
        )
    if name is None:
        parameters = arguments.parameters
        return None if parameters is None else Gradients(parameters), None
    spelling, model = application(name, arguments.precision)
    gradients = Gradients(memory.trained(model), spelling)
    if batch is None:
        return gradients, None
    return gradients, memory.memory_of(
        model, batch, arguments.optimizer, arguments.precision
    )


def _stated(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns stated costs in seconds, by the names of `UnitCosts`."""
    stated = {}
    for flag, field, _ in _LINKS:
        value = getattr(arguments, flag.replace("-", "_"))
        if value is not None:
            stated[field] = value * 1e-6 if flag.endswith("us") else 1e-9 / value
    return stated
