"""What has to hold on several workers, each shown by training something small."""

from collections.abc import Callable

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
)

ALL = (
    same_update,
    equal_weights,
    examples_weigh_the_same,
    own_steps,
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
# What can be refused for the model that is checked.
OF_THE_SUBJECT = (same_update, equal_weights)


def name_of(invariant: Callable[..., str]) -> str:
    """Returns what the user reads for an invariant.

    Args:
        invariant: One of `ALL`.
    """
    return (invariant.__doc__ or "").strip()
