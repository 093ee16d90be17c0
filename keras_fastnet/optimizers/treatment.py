"""Weight decay and adaptation of one variable by LARS, and a table of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from keras_fastnet.text import table


@dataclass(frozen=True)
class Treatment:
    """Tells whether LARS decays and adapts a variable, and why not.

    Attributes:
        path: The variable's path in its model.
        shape: Its shape.
        decayed: Whether weight decay is applied.
        adapted: Whether its learning rate is multiplied by the trust ratio.
        reason: What excludes it; empty if nothing does.
    """

    path: str
    shape: tuple[int, ...]
    decayed: bool
    adapted: bool
    reason: str


def treatment_table(treatments: Iterable[Treatment], weight_decay: float) -> str:
    """Returns a table with a line for each variable.

    Args:
        treatments: The treatments of the variables.
        weight_decay: The optimizer's weight decay; if 0, no tensor is decayed.

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
