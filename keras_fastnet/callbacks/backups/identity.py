"""The training that a backup belongs to, in named parts."""

import hashlib
import inspect
import json
import pathlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.description import (
    described_elements,
    described_model,
    first_difference,
    without_addresses,
)
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import TrainingData
from keras_fastnet.batches.shares import OWN
from keras_fastnet.callbacks.batch_growth import BatchGrowth
from keras_fastnet.callbacks.learning_rate_warmup import LearningRateWarmup
from keras_fastnet.callbacks.progress import updates_of
from keras_fastnet.version import __version__

Parts = dict[str, Any]

# Parts of `described_model` that must not change.
_OF_MODEL = (
    "model",
    "dtype policy",
    "optimizer",
    "loss",
    "loss weights",
    "random seed",
)
# What callbacks may set, and is therefore a setting only before the first update.
SETTINGS = ("learning rate", "accumulation steps")
# Parts that one of the trainings may not know.
_OPTIONAL = (
    *SETTINGS,
    "batches in an epoch",
    "examples in an epoch",
    "first examples",
)
# They depend on the number of workers where each worker reads its own data.
_OF_SHARDS = ("batch size", "batches in an epoch")
_CHANGING = (BatchGrowth, LearningRateWarmup)
NAMES = (
    *_OF_MODEL,
    *_OPTIONAL,
    "first batch",
    "batch size",
    "elements",
    "callbacks",
)
"""Names of the parts."""


def identity_of(
    model: keras.Model, data: TrainingData, callbacks: Sequence[Any]
) -> Parts:
    """Returns what a backup of a training belongs to; JSON can hold it.

    All workers must call it, before the first step.

    Args:
        model: The model, compiled and built.
        data: Its training data.
        callbacks: All callbacks of the training.
    """
    described = described_model(model)
    parts = {name: described.get(name) for name in _OF_MODEL}
    parts["metrics"] = [described.get(n) for n in ("metrics", "weighted metrics")]
    fresh = updates_of(model.optimizer) == 0
    parts.update({name: described.get(name) if fresh else None for name in SETTINGS})
    parts["first examples"] = _digests(data.first_arrays())
    parts["first batch"] = data.elements.fingerprint_of_first()
    parts["marks sources"] = data.elements.marks_sources
    parts["batch size"] = data.examples_of_first_batch()
    parts["batches in an epoch"] = data.batches
    parts["examples in an epoch"] = data.examples
    parts["elements"] = described_elements(data.elements.element_spec)
    parts["callbacks"] = {
        type(callback).__name__: _settings(callback)
        for callback in callbacks
        if isinstance(callback, _CHANGING)
    }
    parts["versions"] = {
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
        "keras_fastnet": __version__,
    }
    parts["Keras"] = 3
    strategy = model.distribute_strategy
    parts["replicas"] = strategy.num_replicas_in_sync
    parts["workers"] = getattr(strategy, "num_workers", 1)
    parts["sharding"] = data.elements.sharding
    # As it is read from a file.
    return json.loads(json.dumps(parts))


def differing_parts(theirs: Parts, mine: Parts, *, exact_order: bool) -> dict[str, str]:
    """Returns the parts in which a backup is of another training.

    Args:
        theirs: The backup's `identity_of`.
        mine: This training's.
        exact_order: Whether data in another order count as other data, because the
            backup's position is within them.

    Returns:
        A text with both values, by the part's name.
    """
    texts = {}
    lenient = theirs["versions"] != mine["versions"]
    for name in ("Keras", *NAMES):
        one, other = theirs.get(name), mine.get(name)
        if None in (one, other) and name in _OPTIONAL:
            continue
        if name in _OF_SHARDS and dealt_differently(theirs, mine):
            continue
        if name == "batch size" and not (exact_order or _has_length(theirs, mine)):
            # Sequences of similar lengths, for example, come in batches of all sizes.
            continue
        if name == "first examples":
            if one != other:
                texts[name] = "other values in this training"
        elif name == "first batch":
            # One tensor is enough: the others may be augmented at random.
            if exact_order and not _same_batch(theirs, mine, any):
                texts[name] = "other values or another order in this training"
        # Versions of Keras have different settings.
        elif (found := first_difference([one, other], in_all=lenient)) is not None:
            keys, (value, own) = found
            place = f"({' '.join(keys)}) " if keys else ""
            texts[name] = (
                f"{place}{_short(value)} in the backup, {_short(own)} in this training"
            )
    return texts


def remarks(theirs: Parts, mine: Parts) -> list[str]:
    """Returns a text for each difference that a training may have from its backup.

    Args:
        theirs: The backup's `identity_of`.
        mine: This training's.
    """
    texts = []
    for name, version in mine["versions"].items():
        before = theirs["versions"].get(name)
        if before != version:
            texts.append(
                f"the backup was written with {name} {before}, this is {version}: "
                "steps may round differently"
            )
    if theirs["replicas"] != mine["replicas"]:
        texts.append(
            f"the backup is of {theirs['replicas']} replicas, this training has "
            f"{mine['replicas']}: sums are rounded differently, and layers such as "
            "Dropout draw other numbers"
        )
    if dealt_differently(theirs, mine):
        texts.append(
            "each worker reads its own data, and the number of workers has changed: "
            "examples of the interrupted epoch may be read twice or not at all"
        )
    if theirs["metrics"] != mine["metrics"]:
        texts.append("the metrics have changed and begin with the next batch")
    seeded = theirs["random seed"] == mine["random seed"] is not None
    if seeded and not _same_batch(theirs, mine, all):
        texts.append(
            "the first batch differs from that of the backup's training: the data "
            "have another order, have changed, or are augmented at random"
        )
    return texts


def checked_settings(
    theirs: Parts,
    mine: Parts,
    *,
    exact_order: bool,
    may_differ: Collection[str],
    folder: pathlib.Path | str,
) -> Parts:
    """Checks that a backup is of the same training.

    Args:
        theirs: The backup's `identity_of`.
        mine: This training's. Settings that it does not know are taken from `theirs`.
        exact_order: As for `differing_parts`.
        may_differ: Names of parts that need not be equal.
        folder: The folder of the backup.

    Returns:
        Those of `SETTINGS` that differ, and may: this training's replace the backup's.

    Raises:
        ValueError: If the backup is of another training.
    """
    differing = differing_parts(theirs, mine, exact_order=exact_order)
    refused = {n: text for n, text in differing.items() if n not in may_differ}
    if refused:
        texts = "; ".join(f"{name}: {text}" for name, text in refused.items())
        raise ValueError(
            f"A backup must be of the same training. Received: {folder}, where these "
            f"parts differ: {texts}. Continue that training as it was, pass another "
            "`backup_dir`, or, to continue it with the new settings, pass "
            f"`may_differ={sorted(refused)}`."
        )
    own = {name: mine[name] for name in SETTINGS if name in differing}
    for name in SETTINGS:
        if mine[name] is None:
            mine[name] = theirs[name]
    return own


def check_same_variables(
    variables: dict[str, Any],
    arrays: dict[str, np.ndarray],
    folder: pathlib.Path | str,
) -> None:
    """Checks that a backup is of the same model and optimizer.

    Args:
        variables: The model's state, by name.
        arrays: The backup's arrays, by name.
        folder: The folder of the backup.

    Raises:
        ValueError: If names or shapes differ.
    """
    mine = {name: (values.path(v), tuple(v.shape)) for name, v in variables.items()}
    theirs = {name: tuple(array.shape) for name, array in arrays.items()}
    for name in sorted({*mine, *theirs}):
        path, shape = mine.get(name, ("nothing", None))
        if shape != theirs.get(name):
            raise ValueError(
                "A backup must be of the same model and optimizer. Received: "
                f"{path} of shape {shape}, while {folder} holds the shape "
                f"{theirs.get(name)}. Train the same model, or pass another "
                "`backup_dir`."
            )


def dealt_differently(theirs: Parts, mine: Parts) -> bool:
    """Returns whether workers read their own data and their number has changed."""
    shardings = theirs["sharding"], mine["sharding"]
    return theirs["workers"] != mine["workers"] and OWN in shardings


def _has_length(theirs: Parts, mine: Parts) -> bool:
    return None not in (theirs["batches in an epoch"], mine["batches in an epoch"])


def _settings(callback: Any) -> dict[str, str]:
    """Returns the arguments that a callback was created with, as text."""
    arguments = inspect.signature(type(callback)).parameters
    return {
        name: without_addresses(str(getattr(callback, name, None)))
        for name in arguments
    }


def _digests(arrays: Any) -> list[str] | None:
    return None if arrays is None else [_digest(p) for p in tf.nest.flatten(arrays)]


def _digest(array: Any) -> str:
    array = np.asarray(array)
    # Arrays of objects, such as strings, hold addresses.
    content = str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _same_batch(
    theirs: Parts, mine: Parts, how_many: Callable[[Iterable[bool]], bool]
) -> bool:
    """Returns whether two trainings appear to have the same first batch.

    Args:
        theirs: The backup's `identity_of`.
        mine: This training's.
        how_many: `all` or `any`: how many of the tensors that tell must be equal.
    """
    one, other = theirs["first batch"], mine["first batch"]
    known = one and other and max(one) >= 0 and max(other) >= 0
    if not known or theirs["marks sources"] != mine["marks sources"]:
        return True
    if len(one) != len(other):
        return False
    telling = [a == b for a, b in zip(one, other, strict=True) if max(a, b) >= 0]
    return how_many(telling)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
