"""`fastnet plan --published`: the model against published systems."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

from keras_fastnet.scaling.published import PUBLISHED_SYSTEMS, Value, predict
from keras_fastnet.text import fact, table


def as_text() -> str:
    """Returns the published systems for people."""
    head = ("", "ranks", "published", "no overlap", "full overlap", "difference")
    rows: list[Sequence[str]] = [head]
    notes: list[str] = []
    for system in PUBLISHED_SYSTEMS:
        prediction = predict(system)
        stated = system.efficiency.number
        pair = (prediction.no_overlap, prediction.full_overlap)
        rows.append(
            (
                system.name,
                f"{system.topology.ranks:,}",
                f"{100 * stated:.1f} %",
                *(f"{100 * value:.1f} %" for value in pair),
                " to ".join(f"{100 * (value - stated):+.1f}" for value in pair),
            )
        )
        notes += ["", f"{system.name}: {system.paper}"]
        values = {
            "efficiency": (system.efficiency, "{:.4g}"),
            "ranks a host": (system.layout, "{:.0f}"),
            "baseline": (system.baseline, "{:.0f}"),
            "gradients": (system.gradient_bytes, "{:,.0f} B"),
            "computation": (system.compute_ms, "{:.0f} ms"),
            "in a host": (system.host_latency_us, "{:.1f} us"),
            "": (system.host_gb, "{:.1f} GB/s"),
            "network": (system.network_latency_us, "{:.1f} us"),
            " ": (system.network_gb, "{:.2f} GB/s a card"),
            "copies": (system.copy_gb, "{:.0f} GB/s"),
        }
        for name, value in values.items():
            notes += _value(name, *value)
        notes.append(
            fact(
                "  model",
                f"{prediction.algorithm}, "
                f"{prediction.all_reduce_seconds * 1e3:.1f} ms of all-reduce",
            )
        )
        notes += _wrapped(f"{'  left out':<16}", system.left_out)
    legend = [
        "Published and predicted weak-scaling efficiency; no value is fitted.",
        "",
    ]
    return "\n".join([*legend, *table(rows, left=1), *notes])


def as_json() -> list[dict[str, Any]]:
    """Returns the published systems for programs."""
    return [
        {
            **dataclasses.asdict(system),
            "prediction": dataclasses.asdict(predict(system)),
        }
        for system in PUBLISHED_SYSTEMS
    ]


def _value(name: str, value: Value, form: str) -> list[str]:
    origin = "published" if value.published else "assumed"
    number = form.format(value.number)
    return _wrapped(f"  {name.strip():<14}{number:<18}{origin:<10}", value.source)


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=start, subsequent_indent=" " * len(start)
    )
