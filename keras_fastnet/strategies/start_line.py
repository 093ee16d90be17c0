"""The line in which the chief says what `fit` is going to do."""

from typing import Any

from keras_fastnet._upstream.chosen import optimizers, values
from keras_fastnet._upstream.keras_api import keras
from keras_fastnet._upstream.training_data import TrainingData
from keras_fastnet.strategies.torus_extended import TorusExtended


def start_line(extended: TorusExtended, model: keras.Model, data: TrainingData) -> str:
    """Returns who trains, on what and in which steps, in one line.

    Args:
        extended: The strategy's inner half.
        model: The model, compiled.
        data: Its training data.
    """
    parts = [_who(extended), _update(extended, model, data), _epoch(model, data)]
    if data.elements.sharding:
        parts.append(data.elements.sharding)
    return "; ".join([*parts, _rate(model.optimizer)])


def _who(extended: TorusExtended) -> str:
    workers, replicas = extended.workers, len(extended.hosts)
    text = _count(workers, "worker")
    if replicas > workers:
        text += f" with {_count(replicas, 'replica')}"
    grid = extended.choice.grid
    if replicas == 1:
        return text
    return f"{text}, grid {grid.rows}x{grid.columns} over {extended.engine}"


def _update(extended: TorusExtended, model: keras.Model, data: TrainingData) -> str:
    batch = data.elements.examples_of_first()
    replicas = len(extended.hosts)
    text = _count(batch, "example") + " a step"
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
        examples = _count(data.examples, "example")
    updates = -(-data.batches // _accumulation(model))
    steps = _count(data.batches, "step")
    return f"{examples}, {steps} and {_count(updates, 'update')} an epoch"


def _rate(optimizer: Any) -> str:
    inner = optimizers.with_inner(optimizer)[-1]
    schedule = optimizers.schedule_of(inner)
    rate = f"{float(values.to_numpy(inner.learning_rate)):.4g}"
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


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
