"""Checks that all workers hold the same weights."""

import json
import math
import sys
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

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
        strategy: The workers' strategy.
        workers: Exchanges values between the workers.
    """

    def __init__(self, strategy: Any, workers: WorkerExchange):
        self._strategy = strategy
        self._workers = workers
        self._warned = False

    def begin(self, model: keras.Model, call: str) -> None:
        """Checks the values before the first step. All workers must call it.

        Args:
            model: The model, built.
            call: `"fit"`, `"evaluate"` or `"predict"`.

        Raises:
            MismatchError: If they differ.
        """
        state = _State(model)
        purpose = f"the first step of `{call}`"
        if len(set(self._workers.gather(state.digest(), purpose))) == 1:
            return
        self._refuse(
            self._differences(state, purpose),
            purpose,
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
        state = _State(model)
        purpose = f"the end of epoch {epoch + 1}"
        text = json.dumps([stop, state.digest()])
        seen = [json.loads(text) for text in self._workers.gather(text, purpose)]
        if len({digest for _, digest in seen}) > 1:
            self._refuse(
                self._differences(state, purpose),
                purpose,
                "Look for code that depends on the rank and sets weights, the learning "
                "rate or another setting of the optimizer, such as a callback that "
                "only one worker has.",
            )
        return any(stop for stop, _ in seen)

    def _differences(self, state: "_State", purpose: str) -> "list[_Difference]":
        own = json.dumps(state.rows())
        texts = self._workers.gather(own, purpose, last=True)
        rows = [json.loads(text) for text in texts]
        counts = [len(own) for own in rows]
        if len(set(counts)) > 1:
            told = difference([count(n, "variable") for n in counts], str)
            return [_Difference("the model and its optimizer", told, "shapes")]
        found = (_compared(same) for same in zip(*rows, strict=True))
        return [different for different in found if different is not None]

    def _refuse(
        self, different: "Sequence[_Difference]", purpose: str, remedy: str
    ) -> None:
        """Raises an error, or warns of what are differences in rounding only."""
        telling = [d for d in different if d.kind != "rounding"]
        first = (telling or list(different))[0]
        told = f"{first.path}: {first.told}"
        if len(different) > 1:
            told += f"; and {count(len(different) - 1, 'other')} differ"
        if telling:
            raise MismatchError(
                "All workers must hold the same weights and the same state of the "
                f"optimizer. Received at {purpose}: {told}. {remedy}"
            )
        if not self._warned and self._strategy.rank == 0:
            print(
                f"fastnet: the workers' weights differ by rounding at {purpose}: "
                f"{told}. Their processors may be of different kinds.",
                file=sys.stderr,
                flush=True,
            )
        self._warned = True


class _Difference(NamedTuple):
    """A variable whose values differ between workers.

    Attributes:
        path: Its path.
        told: The difference, in words.
        kind: How they differ.
    """

    path: str
    told: str
    kind: Literal["shapes", "values", "rounding"]


class _State:
    """The values of the variables that all workers share.

    Args:
        model: Their model.
    """

    def __init__(self, model: keras.Model):
        self._variables = shared_state(model)
        # Of the first device, and not by `numpy`: each takes twice as long otherwise.
        self._arrays = {
            path: local(values.tensorflow_variable(variable)).value().numpy()
            for path, variable in self._variables.items()
        }

    def digest(self) -> str:
        """Returns a text that is equal where all values are."""
        return f"{zlib.crc32(json.dumps(self._marks()).encode()):08x}"

    def rows(self) -> list[list[Any]]:
        """Returns path, shape, checksum and norms of each variable."""
        arrays = self._arrays.items()
        return [
            [path, list(array.shape), mark, _norms(array)]
            for (path, array), mark in zip(arrays, self._marks(), strict=True)
        ]

    def _marks(self) -> list[int]:
        return [
            zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            for array in self._arrays.values()
        ]


def _norms(array: np.ndarray) -> list[float]:
    """Returns the norm of an array, and that of the steps between its elements."""
    flat = array.reshape(-1).astype(np.float64)
    return [float(np.linalg.norm(flat)), float(np.linalg.norm(np.diff(flat)))]


def _compared(same: Sequence[Sequence[Any]]) -> _Difference | None:
    """Returns how one variable differs between the workers, if it does.

    Args:
        same: Its row on each of them.
    """
    shapes, marks, norms = ([row[i] for row in same] for i in (1, 2, 3))
    path = same[0][0]
    if len({tuple(shape) for shape in shapes}) > 1:
        told = difference([f"shape {tuple(shape)}" for shape in shapes], str)
        return _Difference(path, told, "shapes")
    if len(set(marks)) == 1:
        return None
    shown = [f"norm {norm:.9g}" for norm, _ in norms]
    if len(set(shown)) == 1:
        shown = [f"checksum {mark:08x}" for mark in marks]
    told = difference(shown, str)
    apart = any(_apart(numbers) for numbers in zip(*norms, strict=True))
    return _Difference(path, told, "values" if apart else "rounding")


def _apart(norms: Sequence[float]) -> bool:
    """Returns whether norms differ by more than rounding; also where one is NaN."""
    if all(map(math.isnan, norms)):
        return False
    return not max(norms) - min(norms) <= _ROUNDING * max(norms)
