"""`check`, which trains a model on the workers and on one device, and compares."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras, require_keras_3
from keras_fastnet._keras.scopes import train_alone
from keras_fastnet.checks.subject import (
    Data,
    Subject,
    default_dtypes,
    made,
    small_network,
)
from keras_fastnet.checks.traits import custom_parts, random_layers
from keras_fastnet.strategies import TorusStrategy, TPUStrategy
from keras_fastnet.text import count

UPDATES = 3

# The largest difference that adding in another order makes in a few updates, relative
# to the change of the weights.
_TOLERANCE = 1e-3
# If a model's rounding errors are larger, a wrong update could hide among them.
_LARGEST_ROUNDING = 0.01
_MOST_NAMES = 5


class Verdict(NamedTuple):
    """One line of a check's report.

    Attributes:
        subject: What was checked.
        result: `"pass"`; `"fail"`; `"refused"` if the model cannot be compared, or if
            keras_fastnet raised an error because it cannot train it correctly; or
            `"note"` for what a reader of the others should know.
        details: The measured values, or the error's text.
    """

    subject: str
    result: Literal["pass", "fail", "refused", "note"]
    details: str


@dataclasses.dataclass(frozen=True)
class _Training:
    """A model's state after a few updates, and what `fit` logged.

    Attributes:
        start: All values before the first update.
        values: All values after the last update, in the order of `names`.
        names: The path of each weight or state.
        trained: Whether each is a trainable weight.
        logs: The last epoch's loss and metrics.
    """

    start: list[np.ndarray]
    values: list[np.ndarray]
    names: list[str]
    trained: list[bool]
    logs: dict[str, float]


def check(
    strategy: TorusStrategy | TPUStrategy, subject: Subject | None = None
) -> Iterator[Verdict]:
    """Checks that training a model on N workers equals training it on one device.

    Trains the model for three updates on the cluster and on one device, with the same
    data, and compares weights, the state of layers, and logged metrics. Then trains
    it as it is, and compares the weights of all workers. Call it on all workers, and
    iterate over all of its verdicts.

    Args:
        strategy: The cluster's strategy. A strategy of one process works too.
        subject: The model to check. Defaults to `None`: a small network.

    Yields:
        Verdicts, each as soon as it is known.

    Example:

    ```python
    strategy = keras_fastnet.TorusStrategy()
    for verdict in keras_fastnet.checks.check(strategy):
        print(*verdict)
    ```
    """
    require_keras_3("The check of a cluster")
    subject = subject or small_network()
    yield from _verdicts("the updates of one device", _compare, strategy, subject)
    yield from _verdicts("equal weights on every worker", _agree, strategy, subject)


def _verdicts(
    what: str,
    measure: Callable[[Any, Subject], Iterator[Verdict]],
    strategy: Any,
    subject: Subject,
) -> Iterator[Verdict]:
    """Yields what `measure` yields, and a verdict for the error that it raises."""
    try:
        yield from measure(strategy, subject)
    except Exception as error:
        # TensorFlow and Keras raise errors of many types if workers do not agree.
        text = " ".join(str(error).split())
        kind: Any = "refused" if isinstance(error, ValueError) else "fail"
        yield Verdict(what, kind, f"{type(error).__name__}: {text}"[:500])


def _compare(strategy: Any, subject: Subject) -> Iterator[Verdict]:
    batch = subject.examples_per_replica * strategy.num_replicas_in_sync
    # Replicas get unequal shares of the last batch, except on a TPU.
    odd = 0 if strategy.fit_support.compiles_all else 1
    examples = (UPDATES - 1) * batch + batch // 2 + odd
    in_order = np.arange(examples)
    batches = np.split(in_order, [batch, 2 * batch])
    # The same computation, rounded differently.
    turned = np.concatenate([order[::-1] for order in batches])
    changes: set[str] = set()
    start: list[np.ndarray] | None = None
    floats: str | None = "float64"

    def train(cluster: bool, order: np.ndarray) -> _Training:
        training, changed = _train(
            strategy if cluster else None, subject, order, batch, floats, start
        )
        changes.update(changed)
        return training

    try:
        one = train(False, in_order)
    except Exception:
        # Some layers, also of Keras, such as `RandomRotation`, need float32.
        floats = None
        one = train(False, in_order)
    start = one.start
    moved = max(
        (
            _largest(np.subtract(after, before))
            for after, before, trained in zip(
                one.values, start, one.trained, strict=True
            )
            if trained
        ),
        default=0.0,
    )
    if not 0 < moved < np.inf:
        raise ValueError(
            "A model can be compared only if its updates change the weights by a "
            f"finite amount. Received: {subject.name}, whose weights change by {moved} "
            "on one device. Check its data, learning rate and trainable layers."
        )
    # The largest of all workers, so that all go on or none.
    rounding = max(_of_all(strategy, _apart(one, train(False, turned), moved)))
    if rounding > _LARGEST_ROUNDING:
        again = _apart(one, train(False, in_order), moved)
        raise ValueError(_why_not_comparable(subject.name, again, rounding))
    several = train(True, in_order)
    tolerance = max(_TOLERANCE, 10 * rounding)
    seen = f"{count(UPDATES, 'update')}, weights differ by "
    seen += f"{_apart(one, several, moved):.1e} of their change"
    for what, of_weights in (
        ("the updates of one device", True),
        ("the state of layers of one device", False),
    ):
        chosen = [i for i, trained in enumerate(one.trained) if trained == of_weights]
        differing = [
            several.names[i]
            for i in chosen
            if not _difference(one, several, i, moved) <= tolerance
        ]
        details = seen if of_weights else count(len(chosen), "value")
        if differing:
            details = f"{seen}: {_shortened(differing)}"
            if not of_weights:
                details = (
                    f"{_shortened(differing)}: workers average the state that layers "
                    "assign, which is right for means (docs/custom_training.md)"
                )
        if chosen:
            yield Verdict(what, "fail" if differing else "pass", details)
        if of_weights and changes:
            yield Verdict("made comparable", "note", "; ".join(sorted(changes)))
    yield _verdict_of_logs(one.logs, several.logs, tolerance)


def _verdict_of_logs(
    one: dict[str, float], several: dict[str, float], tolerance: float
) -> Verdict:
    differing = [
        f"{name} {mine:.6g} instead of {right:.6g}"
        for (name, right), mine in zip(one.items(), several.values(), strict=True)
        if not np.isclose(mine, right, rtol=tolerance, atol=1e-12, equal_nan=True)
    ]
    what = "the logged loss and metrics of one device"
    if not differing:
        return Verdict(what, "pass", ", ".join(one))
    return Verdict(
        what,
        "fail",
        f"{_shortened(differing)}: workers add up the state of a metric, which is "
        "right for sums over examples. Compute others from the results of `predict`",
    )


def _agree(strategy: Any, subject: Subject) -> Iterator[Verdict]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        batch = subject.examples_per_replica * strategy.num_replicas_in_sync
        model, data = made(subject, 2 * batch + 1)
    model.fit(**_named(data), batch_size=batch, verbose=0)
    sums = [float(np.sum(w, dtype="float64")) for w in model.get_weights()]
    mark = float(np.dot(sums, np.cos(np.arange(len(sums)))))
    marks = _of_all(strategy, mark)
    workers = count(len(marks), "worker")
    what = "equal weights on every worker"
    if len({np.float64(mark).tobytes() for mark in marks}) > 1:
        yield Verdict(what, "fail", f"sums of the weights, by rank: {marks}")
    else:
        yield Verdict(what, "pass", f"bit for bit, on {workers}")
    if layers := random_layers(model):
        yield Verdict(
            "random numbers",
            "note",
            f"{', '.join(layers)}: compared with equal numbers for all examples of a "
            "batch. In training each replica draws its own",
        )
    if parts := custom_parts(model):
        yield Verdict("custom code", "note", ", ".join(parts))


def _of_all(strategy: Any, value: float) -> list[float]:
    """Returns one number from each worker, by rank. Call it on all workers."""
    own = tf.constant([np.float64(value).view(np.int64)], tf.int64)
    numbers = strategy.fit_support.workers.values_of_all(own, "a check")
    return [float(np.int64(n).view(np.float64)) for (n,) in numbers]


def _train(
    strategy: Any,
    subject: Subject,
    order: np.ndarray,
    batch: int,
    floats: str | None,
    start: list[np.ndarray] | None,
) -> tuple[_Training, list[str]]:
    """Trains the subject's model on the cluster, or on one device.

    Args:
        strategy: The cluster's; `None` for one device.
        subject: The model and its data.
        order: The numbers of the examples to train on.
        batch: The global batch size.
        floats: Keras's default dtype; `None` for the one before.
        start: Values of the model before the first update; `None` for its own.

    Returns:
        What became of the model, and how it was changed to be comparable.
    """
    # Known to Keras 3 only.
    from keras_fastnet._keras.keras3.draws import equal_draws

    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    # Not a OneDeviceStrategy: alternating between the two strategies sometimes crashed
    # TensorFlow in one of its threads.
    with strategy.scope() if strategy else train_alone(), default_dtypes(floats):
        model, data = made(subject, len(order))
        changes = _make_comparable(model)
        if start is not None:
            model.set_weights(start)
        start = model.get_weights()
        data = keras.tree.map_structure(lambda part: part[order], data)
        with equal_draws():
            history = model.fit(
                **_named(data), batch_size=batch, shuffle=False, verbose=0
            ).history
    trained = {id(weight) for weight in model.trainable_weights}
    return _Training(
        start,
        model.get_weights(),
        [weight.path for weight in model.weights],
        [id(weight) in trained for weight in model.weights],
        {name: float(np.mean(values[-1])) for name, values in history.items()},
    ), changes


def _make_comparable(model: keras.Model) -> list[str]:
    """Removes what makes replicas differ from one device on purpose.

    Args:
        model: The model. It is changed in place.

    Returns:
        A description of each change.
    """
    changes = []
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
            changes.append("BatchNormalization synchronized")
            if model.jit_compile:
                # XLA cannot compile a synchronized layer on several replicas.
                model.jit_compile = False
                changes.append("without XLA")
    return changes


def _named(data: Data) -> dict[str, Any]:
    """Returns data as arguments of `fit`."""
    return dict(zip(("x", "y", "sample_weight"), data, strict=False))


def _largest(array: Any) -> float:
    return float(np.abs(np.asarray(array, "float64")).max()) if np.size(array) else 0.0


def _difference(one: _Training, other: _Training, index: int, moved: float) -> float:
    """Returns the largest difference of a value, relative to how much it changed."""
    right, found = (np.asarray(t.values[index], "float64") for t in (one, other))
    if not one.trained[index]:
        # The state of layers, such as counters, has a scale of its own.
        moved = _largest(right - one.start[index]) or 1.0
    return _largest(found - right) / moved


def _apart(one: _Training, other: _Training, moved: float) -> float:
    """Returns the largest difference of a trained weight, relative to the change."""
    return max(
        _difference(one, other, index, moved)
        for index, trained in enumerate(one.trained)
        if trained
    )


def _shortened(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _why_not_comparable(name: str, again: float, turned: float) -> str:
    if again > _TOLERANCE:
        return (
            "A model can be compared only if one device trains it to the same weights "
            f"twice. Received: {name}, whose weights differ by {again:.0%} of their "
            "change. Draw random numbers by `keras.random` or layers of Keras: the "
            "check replaces those."
        )
    return (
        "A model can be compared only if its updates do not depend on rounding. "
        f"Received: {name}. On one device, its weights differ by {turned:.0%} of their "
        "change when the examples of a batch are in another order. Check it with a "
        "smaller learning rate, without mixed precision, or with other data; or a "
        "layer or loss depends on the order of the examples."
    )
