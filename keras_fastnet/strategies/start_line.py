"""The line in which the chief says what `fit` is going to do."""

from typing import Any

from keras_fastnet._keras.chosen import optimizers, values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training_data import TrainingData
from keras_fastnet.text import count


def start_line(who: str, replicas: int, model: keras.Model, data: TrainingData) -> str:
    """Returns who trains, on what and in which steps, in one line.

    Args:
        who: Who trains.
        replicas: Number of replicas.
        model: The model, compiled.
        data: Its training data.
    """
    parts = [who, _update(replicas, model, data), _epoch(model, data)]
    if data.elements.sharding:
        parts.append(data.elements.sharding)
    rates = dict.fromkeys(map(_rate, optimizers.innermost(model.optimizer)))
    return "; ".join([*parts, *rates])


def _update(replicas: int, model: keras.Model, data: TrainingData) -> str:
    batch = data.elements.examples_of_first()
    text = count(batch, "example") + " a step"
    if replicas > 1:
        text += f" (up to {-(-batch // replicas):,} a replica)"
    steps = _accumulation(model)
    return text if steps == 1 else f"{text}, {batch * steps:,} in {steps} an update"


def _epoch(model: keras.Model, data: TrainingData) -> str:
    if data.batches is None:
        return "epochs of unknown length"
    batch = data.elements.examples_of_first()
    examples = f"up to {data.batches * batch:,} examples"
    if data.examples is not None:
        examples = count(data.examples, "example")
    updates = -(-data.batches // _accumulation(model))
    steps = count(data.batches, "step")
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
