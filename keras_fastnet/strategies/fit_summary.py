"""The line that the chief prints when `fit` begins."""

from typing import Any

from keras_fastnet._keras.adapters import optimizers, values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.text import count


def fit_summary(
    trained_by: str,
    replicas: int,
    model: keras.Model,
    data: Any,
    rate_set_by: str,
) -> str:
    """Returns the workers, data, steps and learning rate of a training, in one line.

    Args:
        trained_by: The workers and replicas.
        replicas: Number of replicas.
        model: The model, compiled.
        data: Its training data.
        rate_set_by: The callbacks that set the learning rate; empty without any.
    """
    parts = [trained_by, _update(replicas, model, data), _epoch(model, data)]
    if data.elements.sharding:
        parts.append(data.elements.sharding)
    rates = dict.fromkeys(map(_rate, optimizers.innermost(model.optimizer)))
    if rate_set_by:
        # The optimizer's own is never used.
        rates = {f"learning rate set by {rate_set_by}": None}
    return "; ".join([*parts, *rates])


def _update(replicas: int, model: keras.Model, data: Any) -> str:
    batch = data.examples_of_first_batch()
    text = count(batch, "example") + " a step"
    if replicas > 1:
        text += f" (up to {-(-batch // replicas):,} a replica)"
    steps = _accumulation(model)
    return text if steps == 1 else f"{text}, {batch * steps:,} in {steps} an update"


def _epoch(model: keras.Model, data: Any) -> str:
    if data.num_batches is None:
        return "epochs of unknown length"
    batch = data.examples_of_first_batch()
    examples = f"up to {data.num_batches * batch:,} examples"
    if data.examples is not None:
        examples = count(data.examples, "example")
    updates = -(-data.num_batches // _accumulation(model))
    steps = count(data.num_batches, "step")
    return f"{examples}, {steps} and {count(updates, 'update')} an epoch"


def _rate(optimizer: Any) -> str:
    schedule = optimizers.schedule_of(optimizer)
    rate = f"{float(values.to_numpy(optimizer.learning_rate)):.4g}"
    if schedule is not None:
        return f"learning rate {rate} at first, by {schedule}"
    return f"learning rate {rate}"


def _accumulation(model: keras.Model) -> int:
    optimizer = model.optimizer
    for name in ("accumulation_steps", "gradient_accumulation_steps"):
        steps = getattr(optimizer, name, None)
        if steps:
            return int(steps)
    return 1
