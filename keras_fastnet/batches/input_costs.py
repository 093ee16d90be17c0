"""Says what each stage of a pipeline costs a worker."""

from collections.abc import Iterator

import tensorflow as tf

from keras_fastnet._keras import datasets as upstream
from keras_fastnet._keras.map_functions import MapFunction
from keras_fastnet.batches.early_shares import EarlyShares, early_shares

OWN = "each worker reads its own data"
WHOLE = "every worker reads all data and takes its share"


def early_sharding(workers: int) -> str:
    """Returns how data reach the workers where shares are taken early, as a text.

    Args:
        workers: Number of workers.
    """
    return f"{divided('maps', workers)} (source read whole)"


def divided(verb: str, workers: int) -> str:
    """Returns what each worker does with its share of batches, as a text.

    Args:
        verb: What it does, such as `"maps"`.
        workers: Number of workers.
    """
    return f"each worker {verb} 1/{workers} of each batch" if workers > 1 else WHOLE


def explained(dataset: tf.data.Dataset, workers: int) -> str:
    """Returns the stages of a pipeline with their costs to a worker, as a text.

    Args:
        dataset: A dataset of global batches, the same on every worker.
        workers: Number of workers.
    """
    found = early_shares(dataset)
    early = None if isinstance(found, str) else found
    lines = [
        f"{WHOLE}: {found}" if early is None else early_sharding(workers),
        "A stage's cost to a worker, where it is 1 to one device:",
        *_lines(dataset, early, workers, behind_batch=early is not None, depth=0),
    ]
    return "\n".join(lines)


def _lines(
    stage: tf.data.Dataset,
    early: EarlyShares | None,
    workers: int,
    *,
    behind_batch: bool,
    depth: int,
) -> Iterator[str]:
    """Yields the lines of a stage and of those that it reads, the source first.

    Args:
        stage: The stage.
        early: How shares are taken; `None` if every worker runs all stages.
        workers: Number of workers.
        behind_batch: Whether the stage is `batch`, or stands behind it.
        depth: Number of stages that read several datasets, this one among them.
    """
    kind = upstream.kind(stage)
    read = upstream.inputs(stage)
    for part in read:
        yield from _lines(
            part,
            early,
            workers,
            behind_batch=behind_batch and kind not in ("batch", "padded_batch"),
            depth=depth + (len(read) > 1),
        )
    shared = behind_batch or (early is not None and early.passes(stage))
    cost = f"1/{workers}" if shared else "1"
    line = f"  {cost:<6}{'  ' * depth}{_name(stage)}"
    reason = early.examples.reasons.get(id(stage)) if early else None
    yield f"{line}: {reason}" if reason else line


def _name(stage: tf.data.Dataset) -> str:
    kind = upstream.kind(stage) or upstream.class_name(stage)
    if kind == "map":
        return f"map ({MapFunction(stage).name})"
    if kind in ("batch", "padded_batch"):
        return f"{kind} of {upstream.batch_arguments(stage).size}"
    return kind
