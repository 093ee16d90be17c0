"""The line that the chief prints when `fit` begins."""

from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import TrainingData
from keras_fastnet.text import count


def fit_summary(strategy: Any, model: keras.Model, data: TrainingData) -> str:
    """Returns the workers, data and steps of a training, in one line.

    Args:
        strategy: The strategy, which describes itself.
        model: The model, compiled.
        data: Its training data.
    """
    replicas = strategy.num_replicas_in_sync
    parts = [strategy.describe(), _update(replicas, model, data), _epoch(model, data)]
    return "; ".join([*parts, *filter(None, [data.elements.sharding])])


def _update(replicas: int, model: keras.Model, data: TrainingData) -> str:
    batch = data.examples_of_first_batch()
    batch *= data.batches_per_step
    text = count(batch, "example") + " a step"
    if replicas > 1:
        text += f" (up to {-(-batch // replicas):,} a replica)"
    steps = _accumulation(model)
    return text if steps == 1 else f"{text}, {batch * steps:,} in {steps} an update"


def _epoch(model: keras.Model, data: TrainingData) -> str:
    if data.batches is None:
        return "epochs of unknown length"
    batch = data.examples_of_first_batch()
    examples = f"up to {data.batches * batch:,} examples"
    if data.examples is not None:
        examples = count(data.examples, "example")
    number = -(-data.batches // data.batches_per_step)
    updates = -(-number // _accumulation(model))
    steps = count(number, "step")
    return f"{examples}, {steps} and {count(updates, 'update')} an epoch"


def _accumulation(model: keras.Model) -> int:
    optimizer = model.optimizer
    for name in ("accumulation_steps", "gradient_accumulation_steps"):
        steps = getattr(optimizer, name, None)
        if steps:
            return int(steps)
    return 1
