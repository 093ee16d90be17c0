"""Turns the rounds into figures and the figures into a table.

python benchmarks/weak_scaling/report.py [RESULT_FILE]    # prints the table again
"""

import json
import pathlib
import statistics
import sys

from configurations import (
    CEILINGS,
    DDP,
    TORUS,
    TORUS_ONE_BUCKET,
    Configuration,
)

MEASURED = ("step_ms", "peak_mib", "first_step_s")
"""Of a configuration in a round: the median step, a worker's largest memory, and the
seconds from its start to the end of its first step; all of the slowest or largest."""

# By configuration, then by number of workers (JSON's keys are strings), then by what
# was measured.
Rounds = list[dict[str, dict[str, dict[str, float]]]]
COLUMNS = (
    ("step, 1 worker, ms", "one_worker_ms", 0),
    ("step, {workers} workers, ms", "step_ms", 0),
    ("images/s, {workers} workers", "images_per_second", 1),
    ("efficiency", "efficiency", 2),
    ("efficiency over no strategy", "efficiency_over_no_strategy", 2),
    ("step over no communication", "step_over_no_communication", 2),
    ("step over DDP's", "step_over_ddp", 2),
    ("memory, MiB", "peak_mib", 0),
    ("memory over no communication", "memory_over_no_communication", 2),
    ("first step after, s", "first_step_s", 1),
)


def summary(
    configurations: list[Configuration], rounds: Rounds, errors: dict, conditions: dict
) -> dict:
    """Returns the median, minimum and maximum of the rounds per configuration."""
    workers = str(conditions["workers"])
    images = 1e3 * conditions["workers"] * conditions["batch_size"]
    results = {}
    for configuration in configurations:
        name, alone = configuration.name, configuration.alone
        # The other figures are valid without that of one worker.
        if name in errors:
            results[name] = {"error": errors[name]}
            continue
        ceiling = CEILINGS[configuration.worker]
        one, many, ideal = (alone, "1"), (name, workers), (ceiling, workers)
        ddp = (DDP, workers)
        steps = _over_rounds(rounds, lambda a: a, many)
        results[name] = {
            "one_worker_ms": _over_rounds(rounds, lambda a: a, one),
            "step_ms": steps,
            "images_per_second": _over_rounds(rounds, lambda a: images / a, many),
            "efficiency": _over_rounds(rounds, _ratio, one, many),
            "efficiency_over_no_strategy": _over_rounds(
                rounds, _ratio, (ceiling, "1"), many
            ),
            "step_over_no_communication": _over_rounds(rounds, _ratio, many, ideal),
            "step_over_ddp": _over_rounds(rounds, _ratio, many, ddp),
            "peak_mib": _over_rounds(rounds, lambda a: a, many, of="peak_mib"),
            "memory_over_no_communication": _over_rounds(
                rounds, _ratio, many, ideal, of="peak_mib"
            ),
            "first_step_s": _over_rounds(rounds, lambda a: a, many, of="first_step_s"),
            "error": None,
        }
    return results


def buckets_save(rounds: Rounds, workers: int) -> dict | None:
    """Returns the time that buckets save compared with a single bucket."""
    return _over_rounds(
        rounds,
        lambda one, buckets: one - buckets,
        (TORUS_ONE_BUCKET, str(workers)),
        (TORUS, str(workers)),
    )


def _ratio(a, b):
    return a / b


def _over_rounds(rounds, figure, *keys, of="step_ms"):
    """Applies `figure` within each round, where noise affects all equally."""
    values = [
        figure(*(r[name][workers][of] for name, workers in keys))
        for r in rounds
        if all(workers in r.get(name, {}) for name, workers in keys)
    ]
    if not values:
        return None
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def table(result: dict) -> str:
    """Returns the figures as Markdown."""
    workers = result["conditions"]["workers"]
    names = [title.format(workers=workers) for title, _, _ in COLUMNS]
    lines = [
        f"| configuration | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    notes = []
    for name, row in result["results"].items():
        if row["error"]:
            notes.append(f"- {name}: `{row['error']}`")
            cells = ["fails"] + ["-"] * (len(COLUMNS) - 1)
        else:
            cells = [_cell(row[key], digits) for _, key, digits in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    saved = result["buckets_save_ms"]
    if saved:
        notes.append(
            f"- {TORUS}: buckets take {_cell(saved, 0)} ms less than one bucket."
        )
    for name, reason in (result["errors_alone"] | result["skipped"]).items():
        notes.append(f"- {name}: {reason}")
    return "\n".join([*lines, "", *notes])


def _cell(figure, digits):
    if figure is None:
        return "-"
    median, least, most = (f"{figure[k]:.{digits}f}" for k in ("median", "min", "max"))
    return f"{median} ({least} to {most})"


if __name__ == "__main__":
    default = pathlib.Path(__file__).with_name("result.json")
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    if not file.is_file():
        sys.exit(f"A result file must exist. Received: {file}. Run run.py first.")
    print(table(json.loads(file.read_text())))
