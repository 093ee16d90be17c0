"""The state of Keras's callbacks in a backup."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from keras_fastnet._keras.keras_api import keras

# Attributes in which Keras's callbacks keep their state.
_ATTRIBUTES = ("best", "best_epoch", "wait", "cooldown_counter", "stopped_epoch")
_STATEFUL = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)
State = dict[str, float | None]


def states_of(callbacks: Sequence[Any]) -> dict[str, State]:
    """Returns the state of each callback whose state is backed up, by its name.

    Args:
        callbacks: All callbacks of a training.
    """
    return {name: _state(callback) for name, callback in _by_name(callbacks).items()}


def restore_states(
    callbacks: Sequence[Any],
    states: dict[str, State] | list[State],
    note: Callable[[str], None],
) -> None:
    """Gives callbacks the state that a backup has for them.

    Args:
        callbacks: All callbacks of a training.
        states: A result of `states_of`; or a list without names, from a backup of the
            first format.
        note: Called with a text for each callback that only the backup or only this
            training has.
    """
    present = _by_name(callbacks)
    if isinstance(states, list):
        if [set(state) for state in states] != [
            set(_state(c)) for c in present.values()
        ]:
            note(
                f"the backup has the state of {len(states)} other callbacks, which is "
                "not restored"
            )
            return
        states = dict(zip(present, states, strict=True))
    for name, callback in present.items():
        if name in states:
            vars(callback).update(states[name])
        else:
            note(f"the backup has no state of {name}, which starts afresh")
    for name in states:
        if name not in present:
            note(f"the backup has the state of {name}, which this training lacks")


def _by_name(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Returns the callbacks with a state, by class, monitor and place among equals."""
    counts: Counter[str] = Counter()
    named = {}
    for callback in callbacks:
        if not isinstance(callback, _STATEFUL):
            continue
        monitor = vars(callback).get("monitor")
        name = f"{type(callback).__name__}({monitor=!r})"
        counts[name] += 1
        if counts[name] > 1:
            name += f" number {counts[name]}"
        named[name] = callback
    return named


def _state(callback: Any) -> State:
    state = {n: vars(callback)[n] for n in _ATTRIBUTES if n in vars(callback)}
    return {n: None if v is None else float(v) for n, v in state.items()}
