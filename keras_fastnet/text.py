"""Text for the terminal: tables, lists of facts, numbers of things."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Returns the lines of a table.

    Args:
        rows: The cells of each row.
        left: The number of columns, from the first, that are aligned to the left.
    """
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


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Returns a number with its noun, such as `"1 worker"` or `"1,024 workers"`.

    Args:
        number: The number.
        singular: The noun in the singular.
        plural: The noun in the plural. Defaults to `None`: `singular` with an s.
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(singular: str, numbers: Sequence[int]) -> str:
    """Returns numbered things, such as `"rank 2"` or `"ranks 0, 1 and 3"`.

    Args:
        singular: The noun in the singular.
        numbers: The numbers, at least one.
    """
    *first, last = map(str, numbers)
    if not first:
        return f"{singular} {last}"
    return f"{singular}s {', '.join(first)} and {last}"
