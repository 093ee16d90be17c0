"""The variables that training changes, in either Keras."""

from typing import Any


def metric_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics.

    Args:
        model: A compiled model.
    """
    return [v for metric in model.metrics for v in metric.variables]


def named(groups: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns each variable once, by its first group and its place there.

    Args:
        groups: Variables by the name of a group.
    """
    state: dict[str, Any] = {}
    seen: set[int] = set()
    for group, variables in groups.items():
        fresh = [v for v in variables if id(v) not in seen]
        seen.update(map(id, fresh))
        state.update({f"{group}/{i}": v for i, v in enumerate(fresh)})
    return state
