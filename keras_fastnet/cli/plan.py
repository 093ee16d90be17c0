"""`fastnet plan`: what a cluster of some size would reach."""

import argparse
import json

from keras_fastnet.collectives.cost_model import WIRE_BYTES
from keras_fastnet.collectives.grid_choice import DEFAULT_BUCKET_BYTES
from keras_fastnet.errors import UsageError
from keras_fastnet.scaling import plan_plot, plan_published, plan_report
from keras_fastnet.scaling.plan_question import DEFAULT_PRICES, question_of

_DESCRIPTION = """\
Predict what summing the gradients costs on a cluster, which grid TorusStrategy would
choose there, and how efficient training would be. Nothing is run.

The model is linear: so much for each collective operation, each round of messages,
each message and each byte.
Measure these prices with `fastnet bench`, or state them.
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
      prices, model and computing time as measured by `fastnet bench`
  fastnet plan --ranks 1024 --hosts 256 --parameters 25000000 --compute-ms 50 \\
      --plot plan.png
      draw the efficiency of ring and torus from 1 to 1,024 ranks
  fastnet plan --published
      the model against four published systems
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
    parser.add_argument("--ranks", type=int, metavar="N", help="how many ranks")
    parser.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="H",
        help="hosts that they are on, equally many on each (default: %(default)d)",
    )
    parser.add_argument(
        "--cards",
        type=int,
        default=1,
        metavar="C",
        help="network cards of each host (default: %(default)d)",
    )
    parser.add_argument(
        "--cores-per-host",
        type=int,
        metavar="K",
        help="processor cores of each host, where ranks compute on them: more ranks "
        "than cores take longer (default: those of --bench, else enough)",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="NAME",
        help="one of Keras's applications, such as ResNet50 (default: that of --bench)",
    )
    model.add_argument(
        "--parameters", type=int, metavar="P", help="its trainable parameters instead"
    )
    model.add_argument(
        "--wire-dtype",
        choices=WIRE_BYTES,
        default="float32",
        help="dtype in which gradients are sent (default: %(default)s)",
    )
    model.add_argument(
        "--bucket-bytes",
        type=int,
        default=DEFAULT_BUCKET_BYTES,
        metavar="B",
        help="size of a bucket of float32 gradients, as in TorusStrategy "
        "(default: %(default)d)",
    )
    model.add_argument(
        "--compute-ms",
        type=float,
        metavar="MS",
        help="milliseconds of one step on one rank alone, for the efficiency "
        "(default: that of --bench)",
    )
    prices = parser.add_argument_group(
        "prices", "Measured or stated; what is stated takes precedence."
    )
    prices.add_argument(
        "--bench",
        action="append",
        default=[],
        metavar="FILE",
        help="what `fastnet bench` wrote; several are fitted together",
    )
    for name, unit, what in (
        ("latency-us", "US", "microseconds until a message within a host has come"),
        ("overhead-us", "US", "microseconds that a rank works for each of them"),
        ("bandwidth-gb", "GB", "gigabytes a second that a rank sends within a host"),
        ("network-latency-us", "US", "the same between hosts"),
        ("network-overhead-us", "US", "the same between hosts"),
        ("network-bandwidth-gb", "GB", "gigabytes a second of one network card"),
        ("copy-bandwidth-gb", "GB", "gigabytes a second copied in memory"),
        ("collective-us", "US", "microseconds that a rank works to start a collective"),
    ):
        default = DEFAULT_PRICES[name.replace("-", "_")]
        prices.add_argument(
            f"--{name}",
            type=float,
            metavar=unit,
            help=f"{what} (default without --bench: {default:g})",
        )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--plot", metavar="FILE.png", help="draw the efficiency up to N ranks"
    )
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--published",
        action="store_true",
        help="print published systems, with the values they rest on, and nothing else",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet plan` and returns its exit code."""
    if arguments.published:
        if arguments.json:
            print(json.dumps(plan_published.as_json(), indent=2))
        else:
            print(plan_published.as_text())
        return 0
    question = question_of(arguments)
    if arguments.plot and question.compute_seconds is None:
        raise UsageError(
            "--plot draws efficiency, which needs the time of a step's computation. "
            "Received: no --compute-ms, and no --bench of this model. "
            "Give --compute-ms."
        )
    if arguments.plot:
        plan_plot.draw(question, arguments.plot)
    if arguments.json:
        print(json.dumps(plan_report.as_json(question), indent=2))
    else:
        print(plan_report.as_text(question))
    return 0
