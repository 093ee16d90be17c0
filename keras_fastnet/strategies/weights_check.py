"""Checks that all workers hold the same weights."""

import json
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.description import shared_state
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.batches.global_batch import local
from keras_fastnet.errors import MismatchError
from keras_fastnet.strategies.agreement import difference
from keras_fastnet.strategies.worker_exchange import WorkerExchange
from keras_fastnet.text import count

# Processors of different kinds round differently: workers on them drift apart by this
# part of a norm in an epoch, and are warned of.
_ROUNDING = 1e-5


class WeightsCheck:
    """Compares the workers' weights and optimizer states, by checksums.

    Args:
        workers: Exchanges values between the workers.
        warns: Whether this worker prints warnings.
    """

    def __init__(self, workers: WorkerExchange, *, warns: bool):
        self._workers = workers
        self._warns = warns

    def begin(self, model: keras.Model, call: str) -> None:
        """Checks the values before the first step. All workers must call it.

        Args:
            model: The model, built.
            call: `"fit"`, `"evaluate"` or `"predict"`.

        Raises:
            MismatchError: If they differ.
        """
        self._compare(
            model,
            f"the first step of `{call}`",
            "Load or set weights on all workers, outside of any condition on the rank.",
        )

    def end_epoch(self, model: keras.Model, epoch: int, stop: bool) -> bool:
        """Checks the values after an epoch. All workers must call it.

        Args:
            model: The model.
            epoch: The epoch, from 0.
            stop: Whether this worker wants to end the training.

        Returns:
            Whether any worker wants to.

        Raises:
            MismatchError: If the values differ.
        """
        stops = self._compare(
            model,
            f"the end of epoch {epoch + 1}",
            "Look for code that depends on the rank and sets weights, the learning "
            "rate or another setting of the optimizer, such as a callback that only "
            "one worker has.",
            stop,
        )
        return any(stops)

    def _compare(
        self, model: keras.Model, purpose: str, remedy: str, stop: bool = False
    ) -> list[bool]:
        """Returns each worker's `stop`.

        Raises:
            MismatchError: If the values differ by more than rounding.
        """
        arrays = _arrays(model)
        marks = {path: _mark(array) for path, array in arrays.items()}
        # Not of the paths: names of layers may differ.
        digest = zlib.crc32(json.dumps([*marks.values()]).encode())
        own = json.dumps([stop, digest])
        seen = [json.loads(text) for text in self._workers.gather(own, purpose)]
        if len({digest for _, digest in seen}) > 1:
            rows = [[p, list(a.shape), marks[p], _norms(a)] for p, a in arrays.items()]
            texts = self._workers.gather(json.dumps(rows), purpose, last=True)
            self._tell([json.loads(text) for text in texts], purpose, remedy)
        return [stop for stop, _ in seen]

    def _tell(self, by_worker: list[list[Any]], purpose: str, remedy: str) -> None:
        """Raises an error for variables that differ, or warns of rounding."""
        counts = [len(rows) for rows in by_worker]
        if len(set(counts)) > 1:
            told = difference([count(n, "variable") for n in counts], str)
            apart, rounded = [f"the model and its optimizer: {told}"], []
        else:
            found = [_told(same) for same in zip(*by_worker, strict=True)]
            apart = [text for text, is_apart in found if is_apart]
            rounded = [text for text, is_apart in found if text and not is_apart]
        first, *others = [*apart, *rounded]
        told = first + (f"; and {count(len(others), 'other')} differ" if others else "")
        if apart:
            raise MismatchError(
                "All workers must hold the same weights and the same state of the "
                f"optimizer. Received at {purpose}: {told}. {remedy}"
            )
        if self._warns:
            print(
                f"fastnet: the workers' weights differ by rounding at {purpose}: "
                f"{told}. Their processors may be of different kinds.",
                file=sys.stderr,
                flush=True,
            )
        self._warns = False


def _arrays(model: keras.Model) -> Mapping[str, np.ndarray]:
    """Returns the values of the variables that all workers share, by path."""
    # Of the first device, and not by `numpy`: each takes twice as long otherwise.
    return {
        path: local(values.tensorflow_variable(variable)).value().numpy()
        for path, variable in shared_state(model).items()
    }


def _mark(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _norms(array: np.ndarray) -> list[float]:
    """Returns the norm of an array, and that of the steps between its elements."""
    flat = array.reshape(-1).astype(np.float64)
    return [float(np.linalg.norm(flat)), float(np.linalg.norm(np.diff(flat)))]


def _told(same: Sequence[Sequence[Any]]) -> tuple[str, bool]:
    """Returns how a variable differs, and whether by more than rounding.

    Args:
        same: Its path, shape, checksum and norms on each worker.
    """
    shapes, marks, norms = ([row[i] for row in same] for i in (1, 2, 3))
    if len(set(marks)) == 1:
        return "", False
    shown = [f"shape {tuple(shape)}" for shape in shapes]
    same_shape = len(set(shown)) == 1
    if same_shape:
        shown = [f"norm {norm:.9g}" for norm, _ in norms]
    if len(set(shown)) == 1:
        shown = [f"checksum {mark:08x}" for mark in marks]
    apart = not same_shape or any(map(_apart, zip(*norms, strict=True)))
    return f"{same[0][0]}: {difference(shown, str)}", apart


def _apart(norms: Sequence[float]) -> bool:
    """Returns whether norms differ by more than rounding; also where one is NaN."""
    if all(map(math.isnan, norms)):
        return False
    return not max(norms) - min(norms) <= _ROUNDING * max(norms)
