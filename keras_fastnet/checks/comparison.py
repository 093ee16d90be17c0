"""`check`, which trains a model on the workers and on one device, and compares."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.keras_api import keras, require_keras_3
from keras_fastnet.checks.subject import Subject, made, named, small_network
from keras_fastnet.checks.trainings import UPDATES, Training, Trainings
from keras_fastnet.checks.traits import custom_parts
from keras_fastnet.strategies import TorusStrategy, TPUStrategy
from keras_fastnet.text import count

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
    trainings = Trainings(strategy, subject)
    one = trainings.first()
    if not 0 < one.moved < np.inf:
        raise ValueError(
            "A model can be compared only if its updates change the weights by a "
            f"finite amount. Received: {subject.name}, whose weights change by "
            f"{one.moved} on one device. Check its data, learning rate and trainable "
            "layers."
        )
    # The largest of all workers, so that all go on or none.
    turned = one.apart(trainings.train(False, trainings.turned))
    rounding = max(_of_all(strategy, turned))
    if not rounding <= _LARGEST_ROUNDING:
        again = one.apart(trainings.train(False, trainings.in_order))
        raise ValueError(_why_not_comparable(subject.name, again, rounding))
    several = trainings.train(True, trainings.in_order)
    tolerance = max(_TOLERANCE, 10 * rounding)
    yield from _compare_values(one, several, tolerance)
    yield _compare_logs(one.logs, several.logs, tolerance)
    if trainings.changes:
        changes = "; ".join(sorted(trainings.changes))
        yield Verdict("made comparable", "note", changes)


def _compare_values(
    one: Training, several: Training, tolerance: float
) -> Iterator[Verdict]:
    differing = [
        value
        for value, difference in zip(
            several.values, one.differences(several), strict=True
        )
        if not difference <= tolerance
    ]
    wrong = [value.path for value in differing if value.trained]
    details = f"{count(UPDATES, 'update')}, weights differ by "
    details += f"{one.apart(several):.1e} of their change"
    if wrong:
        details += f": {_shortened(wrong)}"
    yield Verdict("the updates of one device", _result(wrong), details)
    state = sum(not value.trained for value in several.values)
    if not state:
        return
    wrong = [value.path for value in differing if not value.trained]
    details = count(state, "value")
    if wrong:
        details = (
            f"{_shortened(wrong)}: workers average the state that layers assign, "
            "which is right for means (docs/custom_training.md)"
        )
    yield Verdict("the state of layers of one device", _result(wrong), details)


def _compare_logs(
    one: dict[str, float], several: dict[str, float], tolerance: float
) -> Verdict:
    wrong = [
        f"{name} {found:.6g} instead of {right:.6g}"
        for (name, right), found in zip(one.items(), several.values(), strict=True)
        if not np.isclose(found, right, rtol=tolerance, atol=1e-12, equal_nan=True)
    ]
    details = ", ".join(one)
    if wrong:
        details = (
            f"{_shortened(wrong)}: workers add up the state of a metric, which is "
            "right for sums over examples. Compute others from the results of `predict`"
        )
    return Verdict("the logged loss and metrics of one device", _result(wrong), details)


def _agree(strategy: Any, subject: Subject) -> Iterator[Verdict]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    batch = subject.examples_per_replica * strategy.num_replicas_in_sync
    with strategy.scope():
        model, data = made(subject, 2 * batch + 1)
    model.fit(**named(data), batch_size=batch, verbose=0)
    sums = [float(np.sum(w, dtype="float64")) for w in model.get_weights()]
    marks = _of_all(strategy, float(np.dot(sums, np.cos(np.arange(len(sums))))))
    details = f"bit for bit, on {count(len(marks), 'worker')}"
    differs = len({np.float64(mark).tobytes() for mark in marks}) > 1
    if differs:
        details = f"sums of the weights, by rank: {marks}"
    yield Verdict("equal weights on every worker", _result(differs), details)
    if parts := custom_parts(model):
        yield Verdict("custom code", "note", ", ".join(parts))


def _of_all(strategy: Any, value: float) -> list[float]:
    """Returns one number from each worker, by rank. Call it on all workers."""
    own = tf.constant([np.float64(value).view(np.int64)], tf.int64)
    numbers = strategy.fit_support.workers.values_of_all(own, "a check")
    return [float(np.int64(n).view(np.float64)) for (n,) in numbers]


def _result(wrong: object) -> Literal["pass", "fail"]:
    return "fail" if wrong else "pass"


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
