"""`fastnet recipe`: shows a recipe for a number of examples and workers."""

import argparse

from keras_fastnet.errors import UsageError
from keras_fastnet.recipes import RECIPES, Recipe
from keras_fastnet.recipes.recipe import IMAGENET

_DESCRIPTION = """\
Print every setting of a recipe for your numbers of examples and workers, with its
source. It needs no data and trains nothing.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet recipe`."""
    parser = subparsers.add_parser(
        "recipe",
        help="show a recipe's settings and their sources",
        description=_DESCRIPTION,
    )
    parser.add_argument("recipe", choices=RECIPES, help=", ".join(RECIPES))
    for name, default, meaning in (
        ("examples", IMAGENET, "training examples (default: ImageNet's)"),
        ("workers", 1, "replicas: workers with one device each (default: 1)"),
        ("epochs", None, "epochs (default: the recipe's)"),
        ("global-batch", None, "examples of an update, in the first phase"),
        ("device-batch", None, "examples of one replica in one step"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=meaning
        )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet recipe` and returns its exit code."""
    try:
        recipe = Recipe(
            arguments.recipe,
            None,
            arguments.examples,
            epochs=arguments.epochs,
            global_batch=arguments.global_batch,
            device_batch=arguments.device_batch,
            ranks=arguments.workers,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(recipe)
    return 0
