"""`fastnet recipe`: shows a recipe for a number of examples and workers."""

import argparse
from itertools import pairwise

from keras_fastnet.cli.option_types import integer
from keras_fastnet.errors import UsageError
from keras_fastnet.recipes import RECIPES, Recipe
from keras_fastnet.text import table

_DESCRIPTION = """\
Print every setting of a recipe for your numbers of examples and workers, with its
source, then the phases with their batch, updates and learning rate. It needs no data
and trains nothing.
"""

_EPILOG = """\
examples:
  fastnet recipe sony2018 --examples 50000 --workers 8
      CIFAR-10 on eight workers with one device each
  fastnet recipe facebook2017 --workers 256
      ImageNet, as in the paper
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet recipe`."""
    parser = subparsers.add_parser(
        "recipe",
        help="show a recipe's settings, batches, updates and learning rate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "recipe", choices=RECIPES, help=", ".join(RECIPES), metavar="NAME"
    )
    parser.add_argument(
        "--examples",
        type=integer(at_least=1, example=50_000),
        metavar="N",
        help="number of training examples (default: ImageNet's 1,281,167)",
    )
    parser.add_argument(
        "-n",
        "--workers",
        type=integer(at_least=1, example=8),
        default=1,
        metavar="N",
        help="number of workers with one device each; with several devices, the number "
        "of devices (default: %(default)d)",
    )
    for name, meaning in (
        ("epochs", "number of epochs"),
        ("global-batch", "examples of an update, in the first phase"),
        ("device-batch", "examples of one device in one step"),
    ):
        parser.add_argument(
            f"--{name}",
            type=integer(at_least=1, example=32),
            metavar="N",
            help=f"{meaning} (default: the recipe's)",
        )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet recipe` and returns its exit code."""
    try:
        recipe = RECIPES[arguments.recipe](
            None,
            arguments.examples,
            epochs=arguments.epochs,
            global_batch=arguments.global_batch,
            device_batch=arguments.device_batch,
            ranks=arguments.workers,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(recipe, _phase_table(recipe), sep="\n\n")
    return 0


def _phase_table(recipe: Recipe) -> str:
    """Returns a line for the warm-up, and for each batch of the rest."""
    warm = max(1, round(recipe.warmup_epochs))
    starts = {0, warm, *recipe.phases}
    ends = sorted(start for start in starts if start < recipe.epochs)
    rows = [("epochs", "global batch", "in steps of", "updates", "in all", "rate")]
    total = 0
    for first, end in pairwise([*ends, recipe.epochs]):
        batch = recipe.global_batch_at(first)
        updates = recipe.updates_per_epoch(first)
        total += updates * (end - first)
        rows.append(
            (
                f"{first + 1} to {end}",
                f"{batch:,}",
                f"{batch // recipe.micro_batch:,} x {recipe.micro_batch:,}",
                f"{updates:,} an epoch",
                f"{total:,}",
                f"{recipe.rate_at(first):.4g} to {recipe.rate_at(end):.4g}",
            )
        )
    return "\n".join(table(rows, left=1))
