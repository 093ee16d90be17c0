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
from keras_fastnet.scaling.plan import Gradients, Nccl, make_plan

_DESCRIPTION = """\
Predict what summing the gradients costs on a cluster, which grid TorusStrategy would
choose there, how long a step would take and how much memory a replica needs. Nothing is
run. Costs are those that `fastnet bench` measured, or are stated.
"""

_EPILOG = """\
examples:
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --compute-ms 160
      eight hosts of eight ranks on CPUs, with 10 Gbit Ethernet
  fastnet plan --ranks 16 --model ResNet50 --bench fastnet-bench.json
      costs as measured by `fastnet bench`
  fastnet plan --ranks 16 --hosts 2 --model ResNet50 --compute-ms 50 \\
      --nccl-us 69 --nccl-gb 260
      GPUs, with the times of nccl-tests
  fastnet plan --ranks 64 --model ResNet50 --device-batch 32 --precision mixed_float16
      also estimate the memory of a replica
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="predict the efficiency of a cluster and the grid to choose",
        usage="fastnet plan --ranks N (--model NAME | --parameters P) [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    count = integer(at_least=1, example=8)
    parser.add_argument("--ranks", type=count, metavar="N", help="number of ranks")
    for flag, letter, default, meaning in (
        ("hosts", "H", 1, "number of hosts, with equally many ranks each (default: 1)"),
        ("cards", "C", 1, "network cards of each host (default: 1)"),
        (
            *("cores-per-host", "K", None),
            "processor cores of each host, if ranks compute on them: more ranks than "
            "cores take longer (default: those of --bench, else enough)",
        ),
    ):
        parser.add_argument(
            f"--{flag}", type=count, default=default, metavar=letter, help=meaning
        )
    model = parser.add_argument_group("model")
    size = model.add_mutually_exclusive_group()
    size.add_argument(
        "--model",
        metavar="NAME",
        help="one of Keras's applications, such as ResNet50",
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
        help="milliseconds of one step on one rank alone, for the efficiency",
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
    costs = parser.add_argument_group("costs")
    costs.add_argument(
        "--bench",
        action="append",
        default=[],
        metavar="FILE",
        help="results that `fastnet bench` wrote; several files are fitted together",
    )
    for flag, unit, meaning in (
        ("network-latency-us", "US", "microseconds until a message arrives"),
        ("network-bandwidth-gb", "GB", "gigabytes per second of a network card"),
        ("nccl-us", "US", "microseconds of NCCL's all-reduce of a few bytes"),
        ("nccl-gb", "GB", "gigabytes per second of a long one: algbw of nccl-tests"),
    ):
        costs.add_argument(
            f"--{flag}",
            type=number(example=40.0, above=0.0),
            metavar=unit,
            help=meaning,
        )
    parser.set_defaults(execute=execute)


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
    size = DEFAULT_BUCKET_BYTES if nccl is None else NCCL_BUCKET_BYTES
    gradients = dataclasses.replace(
        gradients,
        bucket_bytes=arguments.bucket_bytes or size,
        wire_dtype=arguments.wire_dtype,
    )
    stated = {}
    if arguments.network_latency_us is not None:
        stated["network_round"] = arguments.network_latency_us * 1e-6
    if arguments.network_bandwidth_gb is not None:
        stated["network_byte"] = 1e-9 / arguments.network_bandwidth_gb
    compute = arguments.compute_ms
    try:
        plan = make_plan(
            topology,
            gradients,
            nccl=nccl,
            compute_seconds=None if compute is None else compute * 1e-3,
            bench_files=arguments.bench,
            stated_costs=stated,
        )
    except ValueError as error:
        # A file of --bench cannot be read, or its measurements are too few.
        raise UsageError(str(error)) from error
    print(plan_report.as_text(plan, needed))
    return 0


def _topology(arguments: argparse.Namespace) -> Topology:
    ranks, hosts = arguments.ranks, arguments.hosts
    if ranks is None:  # Not `argparse`'s error, which hides misspelt options.
        raise UsageError(
            "--ranks N must give the number of ranks. Received: no --ranks. "
            "Write, for example, `fastnet plan --ranks 8 --parameters 25000000`."
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


def _model(arguments: argparse.Namespace) -> tuple[Gradients, memory.Memory | None]:
    """Returns what is sent, and the memory that is needed if it is known."""
    name, batch = arguments.model, arguments.device_batch
    if name is None and (batch is not None or arguments.parameters is None):
        raise UsageError(
            "--model NAME or --parameters P must give the number of gradients, and "
            "--device-batch needs a model. Received: no --model. "
            "Write, for example, `--model ResNet50`."
        )
    if name is None:
        return Gradients(arguments.parameters), None
    spelling, model = application(name, arguments.precision)
    gradients = Gradients(memory.trained(model), spelling)
    if batch is None:
        return gradients, None
    return gradients, memory.memory_of(
        model, batch, arguments.optimizer, arguments.precision
    )
