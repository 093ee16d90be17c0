"""The file that `fastnet bench` writes, and its table."""

import json
import sys
from pathlib import Path
from typing import Any

from keras_fastnet.scaling.bench_options import UNITS
from keras_fastnet.text import table

_RING = "ring"


def write(document: dict[str, Any], output: str) -> None:
    """Writes what was measured.

    Args:
        document: What was measured.
        output: The file.
    """
    text = json.dumps(document, indent=1)
    Path(output).write_text(f"{text}\n", encoding="utf-8")


def as_text(document: dict[str, Any]) -> str:
    """Returns a table for people.

    Args:
        document: What was measured.
    """
    lines = [
        f"{document['ranks']} ranks on {document['hosts']} host(s), transport "
        f"{document['transport']}, {document['wire_dtype']} on the wire; milliseconds, "
        f"median of {document['rounds']} rounds, * is the fastest"
    ]
    columns = list(dict.fromkeys(_name(row) for row in document["all_reduce"]))
    rows = [["size", *columns, "best/ring"]]
    for nbytes in dict.fromkeys(row["bytes"] for row in document["all_reduce"]):
        found = {
            _name(row): row["seconds"]
            for row in document["all_reduce"]
            if row["bytes"] == nbytes
        }
        best = min(found.values())
        cells = [_milliseconds(found.get(name), best) for name in columns]
        rows.append([_size(nbytes), *cells, f"{best / found[_RING]:.2f}"])
    lines += table(rows, left=1)
    scaling = document.get("weak_scaling")
    if scaling:
        lines += ["", _training(scaling)]
    return "\n".join(lines)


class Progress:
    """One line on stderr that says what is being done.

    Args:
        shown: Whether it is shown at all.
    """

    def __init__(self, shown: bool):
        self._shown = shown

    def say(self, text: str) -> None:
        """Replaces the line."""
        if self._shown:
            print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Lets the line stand as it is."""
        if self._shown:
            print(file=sys.stderr, flush=True)


def _name(row: dict[str, Any]) -> str:
    algorithm = row["algorithm"]
    if algorithm not in ("torus", "gather"):
        return algorithm
    return "{} {}x{}".format(algorithm, *row["grid"])


def _milliseconds(seconds: float | None, best: float) -> str:
    if seconds is None:
        return "- "
    return f"{seconds * 1e3:.2f}{'*' if seconds == best else ' '}"


def _size(nbytes: int) -> str:
    for unit in ("MiB", "MB", "KiB", "KB"):
        if nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]:,} {unit}"
    return f"{nbytes:,} B"


def _training(scaling: dict[str, Any]) -> str:
    side = scaling["image_size"]
    return (
        f"{scaling['model']}, {scaling['parameters']:,} parameters, "
        f"{scaling['batch_per_replica']} images of {side}x{side} per replica:\n"
        f"{scaling['compute_seconds'] * 1e3:.1f} ms a step alone, "
        f"{scaling['step_seconds'] * 1e3:.1f} ms in the cluster, "
        f"efficiency {scaling['efficiency']:.0%}"
    )
