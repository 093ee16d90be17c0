"""The phases of a recipe: a table, and its rate and batch by epoch, as text or plot."""

import os
from collections.abc import Iterator
from itertools import pairwise

from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.schedules.plot import plot
from keras_fastnet.text import table

_ROWS = 24
_BATCH_BAR, _RATE_BAR = 12, 40


def phase_table(recipe: Recipe) -> str:
    """Returns a table of the phases, from the first epoch, 1, to the last.

    Args:
        recipe: The recipe.
    """
    rows = [("epochs", "global batch", "in steps of", "updates", "in all", "rate")]
    total = 0
    for first, end in pairwise([*_starts(recipe), recipe.epochs]):
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


def chart(recipe: Recipe) -> str:
    """Returns bars of the global batch and the learning rate by epoch.

    Args:
        recipe: The recipe.
    """
    epochs = list(_epochs_shown(recipe))
    highest = max(recipe.rate_at(epoch) for epoch in epochs)
    largest = max(recipe.phases.values())
    rows = [("epoch", "global batch", "", "rate", "")]
    for epoch in epochs:
        batch, rate = recipe.global_batch_at(epoch), recipe.rate_at(epoch)
        bars = (
            "#" * round(_BATCH_BAR * batch / largest),
            "#" * round(_RATE_BAR * rate / highest),
        )
        rows.append((f"{epoch}", f"{batch:,}", bars[0], f"{rate:.4g}", bars[1]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}} {row[2]:<{widths[2]}}  "
        f"{row[3]:>{widths[3]}} {row[4]}".rstrip()
        for row in rows
    )


def draw(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Plots the learning rate and the global batch by epoch to a file.

    Args:
        recipe: The recipe.
        path: The file: PNG, PDF or SVG.

    Raises:
        ImportError: If Matplotlib is missing.
    """
    name = recipe.name
    plot({name: recipe.rate_at}, recipe.epochs, path, batches={name: recipe.phases})


def _starts(recipe: Recipe) -> list[int]:
    """Returns the epochs, from 0, at which a phase begins before the training ends."""
    return [start for start in recipe.phases if start < recipe.epochs]


def _epochs_shown(recipe: Recipe) -> Iterator[int]:
    """Returns up to about `_ROWS` epochs, the first of every phase among them."""
    every = -(-recipe.epochs // _ROWS)
    warm = round(recipe.warmup_epochs)
    shown = {*range(0, recipe.epochs, every), *_starts(recipe), warm, recipe.epochs}
    yield from sorted(shown)
