"""Compares what the workers are about to do."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_fastnet._keras.description import ABSENT, first_difference
from keras_fastnet.errors import MismatchError
from keras_fastnet.strategies.worker_exchange import WorkerExchange
from keras_fastnet.text import listed

# Parts that are told of, and characters of a value.
_MOST_PARTS = 3
_LONGEST_VALUE = 200
_NONE = json.dumps(ABSENT)
# Keys of Keras's serialized objects, which say nothing to a reader.
_FORM = ("class", "class_name", "config", "module", "name", "registered_name")


def compare_calls(workers: WorkerExchange, call: str, parts: Mapping[str, Any]) -> None:
    """Checks that all workers make the same call. All must come here.

    Args:
        workers: Gathers texts.
        call: The call, such as "`fit`".
        parts: Named parts of the model, the data and the arguments, for JSON.

    Raises:
        MismatchError: If they differ.
    """
    purpose = f"the beginning of {call}"
    own = {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}
    marks = {name: _digest(text) for name, text in own.items()}
    seen = [json.loads(text) for text in workers.gather(json.dumps(marks), purpose)]
    different = [
        name
        for name in dict.fromkeys(name for marks in seen for name in marks)
        if len({marks.get(name) for marks in seen}) > 1
    ]
    if not different:
        return
    # All have read the same, and come here.
    told, more = different[:_MOST_PARTS], different[_MOST_PARTS:]
    text = json.dumps({name: own.get(name) for name in told})
    values = [json.loads(text) for text in workers.gather(text, purpose, last=True)]
    lines = [
        f"{name}: {difference([json.loads(value[name] or _NONE) for value in values])}"
        for name in told
    ]
    if more:
        lines.append(f"and {len(more)} more ({', '.join(more)})")
    raise MismatchError(
        "All workers must make the same calls of `fit`, `evaluate` and `predict`, with "
        f"the same model, data and settings. Received at {purpose}: "
        f"{'; '.join(lines)}. Look for code that depends on the rank: only what merely "
        "watches, such as logging, may differ."
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(value: Any) -> str:
    if value is None or value == ABSENT:
        return str(value)
    if isinstance(value, dict) and "class_name" in value:
        return str(value["class_name"])
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def difference(values: Sequence[Any], shown: Callable[[Any], str] = _shown) -> str:
    """Returns the first place at which values differ, and what each rank has there.

    Args:
        values: Values of JSON, by rank, not all equal.
        shown: Returns a value as a text.
    """
    place, values = first_difference(values) or ([], values)
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(shown(value), []).append(rank)
    told = ", ".join(f"{value} on {listed('rank', r)}" for value, r in ranks.items())
    name = next((k for k in reversed(place) if not k.isdigit() and k not in _FORM), "")
    return f"`{name}` is {told}" if name else told
