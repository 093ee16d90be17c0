"""Which training a backup belongs to, in named parts."""

import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.description import (
    described_elements,
    described_model,
    first_difference,
    without_addresses,
)
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.batches.shares import OWN
from keras_fastnet.callbacks.batch_growth import BatchGrowth
from keras_fastnet.callbacks.learning_rate_warmup import LearningRateWarmup
from keras_fastnet.callbacks.progress import updates_of

Parts = dict[str, Any]

# Parts that callbacks may set, and that are compared as they are before any update.
_SETTINGS = ("learning rate", "accumulation steps")
_OF_MODEL = (
    "model",
    "dtype policy",
    "optimizer",
    "loss",
    "loss weights",
    "random seed",
    "metrics",
    "weighted metrics",
    *_SETTINGS,
)
# Parts that one of the trainings may not know.
_OPTIONAL = (
    *_SETTINGS,
    "batches in an epoch",
    "examples in an epoch",
    "first examples",
)
# What may differ, and tells how to compare the others.
_CONDITIONS = ("marks sources", "replicas", "workers", "sharding")


def identity_of(model: keras.Model, data: Any, callbacks: Sequence[Any]) -> Parts:
    """Returns what a backup of a training belongs to; JSON can hold it.

    All workers must call it, before the first step.

    Args:
        model: The model, compiled and built.
        data: Its training data.
        callbacks: All callbacks of the training.
    """
    described = described_model(model)
    if updates_of(model.optimizer):
        described |= dict.fromkeys(_SETTINGS)
    arrays = data.first_arrays()
    digests = None if arrays is None else list(map(_digest, tf.nest.flatten(arrays)))
    strategy = model.distribute_strategy
    parts = {
        **{name: described.get(name) for name in _OF_MODEL},
        "first examples": digests,
        "first batch": data.elements.fingerprint_of_first(),
        "batch size": data.examples_of_first_batch(),
        "batches in an epoch": data.num_batches,
        "examples in an epoch": data.examples,
        "elements": described_elements(data.elements.element_spec),
        "callbacks": {
            type(callback).__name__: _arguments(callback)
            for callback in callbacks
            if isinstance(callback, BatchGrowth | LearningRateWarmup)
        },
        "marks sources": data.elements.marks_sources,
        "replicas": strategy.num_replicas_in_sync,
        "workers": getattr(strategy, "num_workers", 1),
        "sharding": data.elements.sharding,
    }
    # As it is read from a file.
    return json.loads(json.dumps(parts))


def differing_parts(theirs: Parts, mine: Parts, *, exact_order: bool) -> dict[str, str]:
    """Returns a text with both values for each part that differs, by its name.

    Args:
        theirs: The backup's `identity_of`.
        mine: This training's.
        exact_order: Whether data in another order count as other data, because the
            backup's position is within them.
    """
    ignored = set(_CONDITIONS)
    if not exact_order:
        ignored.add("first batch")
        if None in (theirs["batches in an epoch"], mine["batches in an epoch"]):
            # Sequences of similar lengths, for example, come in batches of all sizes.
            ignored.add("batch size")
    if theirs["workers"] != mine["workers"] and OWN in (
        theirs["sharding"],
        mine["sharding"],
    ):
        # Each worker reads its own data.
        ignored |= {"batch size", "batches in an epoch"}
    if _same_batch(theirs, mine):
        ignored.add("first batch")
    texts = {}
    for name in mine:
        both = [theirs.get(name), mine[name]]
        if name in ignored or (name in _OPTIONAL and None in both):
            continue
        if (found := first_difference(both)) is not None:
            texts[name] = (
                "other values, or another order, in this training"
                if name.startswith("first")
                else _text(*found)
            )
    return texts


def _same_batch(theirs: Parts, mine: Parts) -> bool:
    """Returns whether two trainings may have the same first batch.

    One equal tensor is enough, since the others may be augmented at random. A negative
    fingerprint tells nothing.
    """
    one, other = theirs["first batch"], mine["first batch"]
    comparable = theirs["marks sources"] == mine["marks sources"]
    if not comparable or max(*one, -1) < 0 or max(*other, -1) < 0:
        return True
    return any(a == b >= 0 for a, b in zip(one, other, strict=False))


def _arguments(callback: Any) -> dict[str, str]:
    """Returns the arguments that a callback was created with, as text."""
    names = inspect.signature(type(callback)).parameters
    return {n: without_addresses(str(getattr(callback, n, None))) for n in names}


def _digest(array: Any) -> str:
    array = np.asarray(array)
    # Arrays of objects, such as strings, hold addresses.
    content = str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _text(keys: list[str], both: Sequence[Any]) -> str:
    """Returns the two values of a part, and where in it they are."""
    one, other = (json.dumps(value)[:100] for value in both)
    place = f"({' '.join(keys)}) " if keys else ""
    return f"{place}{one} in the backup, {other} in this training"
