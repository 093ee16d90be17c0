"""Text for the terminal: tables, lists of facts, numbers of things."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Aligns cells, those of the first `left` columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def fact(name: str, value: str) -> str:
    """Returns one line of a list of facts."""
    return f"{name:<16}{value}"


def count(number: int, thing: str) -> str:
    """Returns a number of things, in the singular or the plural.

    Args:
        number: How many.
        thing: In the singular.
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
