"""Checks a cluster."""

from collections.abc import Iterator

from keras_fastnet._keras.keras_api import keras, require_keras_3
from keras_fastnet.checks import invariants
from keras_fastnet.checks.probe import Probe
from keras_fastnet.checks.subject import Subject, built_in
from keras_fastnet.checks.verdict import Failed, Verdict
from keras_fastnet.strategies import TorusStrategy, TPUStrategy


def check(
    strategy: TorusStrategy | TPUStrategy, subject: Subject | None = None
) -> Iterator[Verdict]:
    """Proves, on a cluster, that N workers equal one device.

    It trains small models for a few updates on the cluster and on one device. All
    workers must call it, and take all of its verdicts.

    Args:
        strategy: The cluster's strategy, also of one process.
        subject: The model to check the update of. Defaults to `None`: a small
            network.

    Yields:
        A verdict for each invariant.

    Example:

    ```python
    strategy = keras_fastnet.TorusStrategy()
    for verdict in keras_fastnet.checks.check(strategy):
        print(*verdict)
    ```
    """
    require_keras_3("The check of a cluster")
    probe, subject = Probe(strategy), subject or built_in()
    for invariant in invariants.ALL:
        # The same on all workers, and on all devices of one.
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        name = invariants.name_of(invariant)
        try:
            verdict = Verdict(name, "pass", invariant(probe, subject))
        except Failed as failure:
            verdict = Verdict(name, "fail", str(failure))
        except Exception as error:
            # Also whatever TensorFlow and Keras raise where something is amiss.
            text = " ".join(str(error).split())
            text = f"{type(error).__name__}: {text}"[:500]
            of_the_subject = invariant in invariants.OF_THE_SUBJECT
            if of_the_subject and isinstance(error, ValueError):
                verdict = Verdict(name, "refused", text)
            else:
                verdict = Verdict(name, "fail", text)
        yield verdict
