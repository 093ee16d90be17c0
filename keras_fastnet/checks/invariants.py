"""The list of invariants that `fastnet check` shows, and `check`, which shows them."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from keras_fastnet._keras.keras_api import keras, require_keras_3
from keras_fastnet.checks.probe import InvariantError, Probe
from keras_fastnet.checks.subject import Subject, small_network
from keras_fastnet.checks.training_invariants import (
    callbacks_together,
    distinct_masks,
    each_example_once,
    outside_the_scope,
    prepared_batches,
    resume,
    unequal_shards,
)
from keras_fastnet.checks.update_invariants import (
    equal_weights,
    examples_weigh_the_same,
    micro_batches,
    overflow_agreement,
    own_steps,
    same_update,
    several_steps,
)
from keras_fastnet.strategies import TorusStrategy, TPUStrategy

ALL = (
    same_update,
    equal_weights,
    examples_weigh_the_same,
    own_steps,
    several_steps,
    micro_batches,
    overflow_agreement,
    distinct_masks,
    each_example_once,
    prepared_batches,
    unequal_shards,
    resume,
    callbacks_together,
    outside_the_scope,
)
# Those that train the user's model. keras_fastnet may refuse to train it.
_OF_THE_SUBJECT = (same_update, equal_weights)


class Verdict(NamedTuple):
    """The result of checking one invariant.

    Attributes:
        invariant: The name of the invariant.
        result: `"pass"`, `"fail"`, or `"refused"` if keras_fastnet raised an error
            because it cannot train this model correctly.
        details: The measured values, or the error's text.
    """

    invariant: str
    result: Literal["pass", "fail", "refused"]
    details: str


def check(
    strategy: TorusStrategy | TPUStrategy, subject: Subject | None = None
) -> Iterator[Verdict]:
    """Checks that training on N workers equals training on one device.

    It trains small models for a few updates, on the cluster and on one device. Call it
    on all workers, and iterate over all of its verdicts.

    Args:
        strategy: The cluster's strategy. A strategy of one process works too.
        subject: The model whose updates are compared. Defaults to `None`: a small
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
    probe, subject = Probe(strategy), subject or small_network()
    for invariant in ALL:
        # All workers start with the same seed, and so do both trainings of a worker.
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        name = name_of(invariant)
        try:
            verdict = Verdict(name, "pass", invariant(probe, subject))
        except InvariantError as error:
            verdict = Verdict(name, "fail", str(error))
        except Exception as error:
            # TensorFlow and Keras raise errors of many types if an invariant is broken.
            text = " ".join(str(error).split())
            text = f"{type(error).__name__}: {text}"[:500]
            if invariant in _OF_THE_SUBJECT and isinstance(error, ValueError):
                verdict = Verdict(name, "refused", text)
            else:
                verdict = Verdict(name, "fail", text)
        yield verdict


def name_of(invariant: Callable[..., str]) -> str:
    """Returns the name under which an invariant is printed: its docstring."""
    return (invariant.__doc__ or "").strip()
