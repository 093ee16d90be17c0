"""Compares two runs of a program."""

from typing import Any

import numpy as np


def largest_difference(ours: Any, theirs: Any, name: str = "") -> tuple[float, str]:
    """Returns the largest relative difference of two results, and where it is.

    Args:
        ours: Numbers in lists and dicts.
        theirs: The reference, in the same structure.
        name: The path of the results within the structure.
    """
    if isinstance(theirs, dict):
        if set(ours) != set(theirs):
            return float("inf"), f"{name}: {sorted(ours)}, not {sorted(theirs)}"
        return max(
            largest_difference(ours[k], theirs[k], f"{name}/{k}") for k in theirs
        )
    ours, theirs = np.asarray(ours, "float64"), np.asarray(theirs, "float64")
    finite = np.isfinite(ours).all() and np.isfinite(theirs).all()
    if ours.shape != theirs.shape or not finite:
        return float("inf"), f"{name}: {ours}, not {theirs}"
    scale = np.abs(theirs).max() or 1.0
    return float(np.abs(ours - theirs).max() / scale), name
