"""Gives the variables of all workers equal values before they are first used."""

import json
import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.tensorflow import captured_tensors
from keras_fastnet.batches.global_batch import local
from keras_fastnet.errors import MismatchError
from keras_fastnet.strategies.agreement import difference
from keras_fastnet.text import count


class InitialValues:
    """The variables of a strategy whose values the workers have not compared yet.

    Each worker makes its variables alone, so that random initial values, without a
    seed, differ. Before their first use all workers take the chief's, as with
    Horovod's `BroadcastGlobalVariables`. Weights that only the chief has loaded by then
    reach all workers too.
    """

    def __init__(self) -> None:
        self._new: list[weakref.ref[Any]] = []

    def note(self, variable: Any) -> None:
        """Remembers a variable that has been made."""
        self._new.append(weakref.ref(variable))

    def agree_on(self, variables: Iterable[Any], workers: Any, purpose: str) -> int:
        """Gives those of some variables that are new the chief's values.

        All workers must call it, with the same variables in the same order.

        Args:
            variables: TensorFlow variables.
            workers: A `WorkerExchange`.
            purpose: What begins now, such as "the first step of `fit`".

        Returns:
            The number of variables that some worker had another value of.

        Raises:
            MismatchError: If the workers have made different variables.
        """
        new = {id(v): v for v in self._living()}
        wanted = {id(v): v for v in variables if id(v) in new}
        return self._agree(list(wanted.values()), workers, purpose)

    def agree_on_used(self, workers: Any, purpose: str) -> int:
        """Does so for the variables that this code uses: those of the graph it traces.

        Without a graph for all new ones.

        Args:
            workers: A `WorkerExchange`.
            purpose: What begins now.
        """
        living = self._living()
        if not living:
            return 0
        handles = {
            id(own.handle): variable
            for variable in living
            for own in getattr(variable, "values", [variable])
        }
        used = living
        if not tf.executing_eagerly():
            found = (handles.get(id(tensor)) for tensor in captured_tensors())
            used = list({id(v): v for v in found if v is not None}.values())
        return self._agree(used, workers, purpose)

    def _living(self) -> list[Any]:
        living = [v for v in (reference() for reference in self._new) if v is not None]
        self._new = [weakref.ref(variable) for variable in living]
        return living

    def _agree(self, variables: list[Any], workers: Any, purpose: str) -> int:
        # This may be within a function that is traced.
        with tf.init_scope():
            # Those that it makes have no value until it has been traced.
            ready = [v for v in variables if local(v).is_initialized()]
            if not ready:
                return 0
            done = set(map(id, ready))
            self._new = [own for own in self._new if id(own()) not in done]
            return _take_from_chief(workers, ready, purpose)


def _take_from_chief(workers: Any, variables: list[Any], purpose: str) -> int:
    arrays = [np.ascontiguousarray(local(v).value().numpy()) for v in variables]
    kinds = [
        f"{v.name}: shape {array.shape}, dtype {array.dtype.name}"
        for v, array in zip(variables, arrays, strict=True)
    ]
    shapes = [[list(array.shape), array.dtype.name] for array in arrays]
    sums = [zlib.crc32(array.reshape(-1).view(np.uint8).data) for array in arrays]
    texts = workers.gather(json.dumps([shapes, sums]), f"{purpose}, new variables")
    seen = [json.loads(text) for text in texts]
    if any(each[0] != seen[0][0] for each in seen):
        told = workers.gather(json.dumps(kinds), f"{purpose}, names", last=True)
        _refuse([json.loads(text) for text in told], purpose)
    different = [
        i
        for i, marks in enumerate(zip(*(each[1] for each in seen), strict=True))
        if len(set(marks)) > 1
    ]
    if different:
        content = workers.from_chief(b"".join(arrays[i].tobytes() for i in different))
        start = 0
        for i in different:
            array = np.frombuffer(
                content[start : start + arrays[i].nbytes], arrays[i].dtype
            )
            start += arrays[i].nbytes
            variables[i].assign(array.reshape(arrays[i].shape))
    return len(different)


def _refuse(kinds: list[list[str]], purpose: str) -> None:
    counts = [len(own) for own in kinds]
    if len(set(counts)) > 1:
        told = difference([count(n, "new variable") for n in counts], str)
    else:
        first = next(own for own in zip(*kinds, strict=True) if len(set(own)) > 1)
        told = difference(list(first), str)
    raise MismatchError(
        "Within `strategy.scope()` a model must be built, compiled or loaded on all "
        f"workers. Received at {purpose}: {told}. Let all workers do so, or do it "
        "outside of the scope on this one."
    )
