"""Prints what LARS does with each variable."""

from collections.abc import Iterable

from keras_fastnet.optimizers.treatment import Treatment
from keras_fastnet.text import table


def treatment_table(treatments: Iterable[Treatment], weight_decay: float) -> str:
    """Lays treatments out as a table with a line for each variable.

    Args:
        treatments: What is done with each variable.
        weight_decay: The optimizer's; at 0 no tensor is decayed.

    Returns:
        The table, with a header and a line of totals.
    """
    treatments = list(treatments)
    decayed = [t.decayed and weight_decay > 0 for t in treatments]
    rows = [("path", "shape", "decayed", "adapted", "excluded by")]
    rows += [
        (t.path, str(t.shape), _yes_no(decay), _yes_no(t.adapted), t.reason)
        for t, decay in zip(treatments, decayed, strict=True)
    ]
    lines = table(rows, left=len(rows[0]))
    adapted = sum(t.adapted for t in treatments)
    lines.append(
        f"{len(treatments)} tensors: {sum(decayed)} decayed, {adapted} adapted "
        f"(weight_decay={weight_decay:g})"
    )
    return "\n".join(lines)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
