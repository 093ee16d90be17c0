"""`fastnet plan`: predicts the efficiency of a cluster."""

import argparse
import json

from keras_fastnet.cli.option_types import integer, number
from keras_fastnet.collectives.cost_model import WIRE_BYTES
from keras_fastnet.collectives.grid_choice import DEFAULT_BUCKET_BYTES
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling import plan_report, published
from keras_fastnet.scaling.memory import SLOTS
from keras_fastnet.scaling.plan import DEFAULT_COSTS, make_plan

_DESCRIPTION = """\
Predict what summing the gradients costs on a cluster, which grid TorusStrategy would
choose there, and how efficient training would be. Nothing is run.

The model is linear: it has one unit cost for each collective operation, each round of
messages, each message and each byte. Measure these costs with `fastnet bench`, or state
them.
"""

_EPILOG = """\
examples:
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --compute-ms 160
      eight hosts of eight, on 10 Gbit Ethernet
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --compute-ms 160 \\
      --bandwidth-gb 18 --copy-bandwidth-gb 700 --network-latency-us 14 \\
      --network-bandwidth-gb 12.5 --wire-dtype bfloat16
      the same on GPUs with 100 Gbit InfiniBand, gradients sent in half the bytes
  fastnet plan --ranks 16 --bench bench.json
      costs, model and computing time as measured by `fastnet bench`
  fastnet plan --ranks 1024 --hosts 256 --parameters 25000000 --compute-ms 50 \\
      --plot plan.png
      draw the efficiency of ring and torus from 1 to 1,024 ranks
  fastnet plan --ranks 64 --model ResNet50 --device-batch 32 --precision mixed_float16
      also estimate the memory of a replica
  fastnet plan --published
      compare the predictions with four published systems
"""


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
    parser.add_argument("--ranks", type=count, metavar="N", help="number of ranks")
    parser.add_argument(
        "--hosts",
        type=count,
        default=1,
        metavar="H",
        help="number of hosts, with equally many ranks each (default: %(default)d)",
    )
    parser.add_argument(
        "--cards",
        type=count,
        default=1,
        metavar="C",
        help="network cards of each host (default: %(default)d)",
    )
    parser.add_argument(
        "--cores-per-host",
        type=count,
        metavar="K",
        help="processor cores of each host, if ranks compute on them: more ranks "
        "than cores take longer (default: those of --bench, else enough)",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="NAME",
        help="one of Keras's applications, such as ResNet50 (default: that of --bench)",
    )
    model.add_argument(
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
        default=DEFAULT_BUCKET_BYTES,
        metavar="B",
        help="size of a bucket of float32 gradients, as in TorusStrategy "
        "(default: %(default)d)",
    )
    model.add_argument(
        "--compute-ms",
        type=number(above=0.0, example=160.0),
        metavar="MS",
        help="milliseconds of one step on one rank alone, for the efficiency "
        "(default: that of --bench)",
    )
    memory = parser.add_argument_group(
        "memory", "What a replica needs to train the model of --model."
    )
    memory.add_argument(
        "--device-batch",
        type=count,
        metavar="B",
        help="examples of one replica in one step; without it, no memory is shown",
    )
    memory.add_argument(
        "--optimizer",
        choices=SLOTS,
        default="lars",
        help="(default: %(default)s)",
    )
    memory.add_argument(
        "--precision",
        choices=("float32", "mixed_float16", "mixed_bfloat16"),
        default="float32",
        help="dtype policy (default: %(default)s)",
    )
    costs = parser.add_argument_group(
        "unit costs", "Measured or stated. Stated costs override measured ones."
    )
    costs.add_argument(
        "--bench",
        action="append",
        default=[],
        metavar="FILE",
        help="results that `fastnet bench` wrote; several files are fitted together",
    )
    for name, unit, meaning in (
        ("latency-us", "US", "microseconds until a message within a host arrives"),
        ("overhead-us", "US", "microseconds of work for each of these messages"),
        ("bandwidth-gb", "GB", "gigabytes per second that a rank sends within a host"),
        ("network-latency-us", "US", "--latency-us between hosts"),
        ("network-overhead-us", "US", "--overhead-us between hosts"),
        ("network-bandwidth-gb", "GB", "gigabytes per second of one network card"),
        ("copy-bandwidth-gb", "GB", "gigabytes per second copied in memory"),
        ("collective-us", "US", "microseconds of work to start a collective operation"),
    ):
        default = DEFAULT_COSTS[name.replace("-", "_")]
        bound = {"at_least": 0.0} if unit == "US" else {"above": 0.0}
        costs.add_argument(
            f"--{name}",
            type=number(example=default, **bound),
            metavar=unit,
            help=f"{meaning} (default without --bench: {default:g})",
        )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--plot", metavar="FILE.png", help="plot the efficiency up to N ranks"
    )
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--published",
        action="store_true",
        help="print only the comparison with published systems and its sources",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet plan` and returns its exit code."""
    if arguments.published:
        if arguments.json:
            print(json.dumps(published.as_json(), indent=2))
        else:
            print(published.as_text())
        return 0
    if arguments.ranks is None:
        raise UsageError(
            "--ranks N must give the number of ranks. Received: no --ranks. "
            "Write, for example, `fastnet plan --ranks 8 --parameters 25000000`."
        )
    costs = {name: getattr(arguments, name) for name in DEFAULT_COSTS}
    try:
        plan = make_plan(
            ranks=arguments.ranks,
            hosts=arguments.hosts,
            cards=arguments.cards,
            cores_per_host=arguments.cores_per_host,
            model=arguments.model,
            parameters=arguments.parameters,
            wire_dtype=arguments.wire_dtype,
            bucket_bytes=arguments.bucket_bytes,
            compute_ms=arguments.compute_ms,
            bench_files=arguments.bench,
            stated_costs={name: c for name, c in costs.items() if c is not None},
            device_batch=arguments.device_batch,
            optimizer=arguments.optimizer,
            precision=arguments.precision,
        )
    except ValueError as error:
        # A file of --bench cannot be read, or its measurements are too few.
        raise UsageError(str(error)) from error
    if arguments.plot and plan.compute_seconds is None:
        raise UsageError(
            "--plot draws efficiency, which needs the time of a step's computation. "
            "Received: no --compute-ms, and no --bench of this model. "
            "Give --compute-ms."
        )
    if arguments.plot:
        plan_report.draw(plan, arguments.plot)
    if arguments.json:
        print(json.dumps(plan_report.as_json(plan), indent=2))
    else:
        print(plan_report.as_text(plan))
    return 0
