"""Refuses models that were made outside of the scope of a strategy."""

import contextlib
import contextvars
import weakref
from collections.abc import Iterator
from typing import Any

STRATEGIES: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Those in which models have to be made."""

_alone_on_purpose = contextvars.ContextVar("_alone_on_purpose", default=False)


@contextlib.contextmanager
def training_alone() -> Iterator[None]:
    """Lets models outside of a strategy's scope train, to compare with."""
    token = _alone_on_purpose.set(True)
    try:
        yield
    finally:
        _alone_on_purpose.reset(token)


def refuse_no_scope(model: Any, in_scope: bool) -> None:
    """Raises where a model would train on every worker by itself, in silence.

    Args:
        model: The model that is about to be trained.
        in_scope: Whether it was made in the scope of a strategy.

    Raises:
        ValueError: It belongs to no strategy, while one with several replicas exists.
    """
    replicas = max((s.num_replicas_in_sync for s in STRATEGIES), default=1)
    alone = not in_scope and not _alone_on_purpose.get()
    if replicas > 1 and alone:
        raise ValueError(
            "A model must be made within `with strategy.scope():` to be trained on "
            f"several replicas. Received: {model.name!r}, made outside, while a "
            f"strategy with {replicas} replicas exists. Move its layers and `compile` "
            "into the scope."
        )
