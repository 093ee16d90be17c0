"""Recipe of the MLPerf reference convergence points, for batches of 4K to 64K."""

import math
from typing import Any, NamedTuple

from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import chosen, nearest_batch, paper
from keras_fastnet.recipes.sizes import Sizes, takes_old_arguments
from keras_fastnet.schedules import Polynomial, square_root_scaling

_SOURCE = "reference convergence points of MLPerf training 4.0, ResNet-50"
_END_RATE = 1e-4


class Point(NamedTuple):
    """Hyperparameters with which the reference reaches 75.9 % top-1.

    Attributes:
        rate: Peak of the learning rate.
        warmup_epochs: Epochs of warm-up.
        momentum: The momentum.
        weight_decay: The weight decay.
        epochs: Epochs to 75.9 % top-1.
    """

    rate: float
    warmup_epochs: int
    momentum: float
    weight_decay: float
    epochs: float


POINTS = {
    4_096: Point(10.0, 5, 0.9, 2e-4, 40),
    8_192: Point(17.0, 5, 0.9, 2e-4, 42),
    32_768: Point(21.2, 16, 0.94, 2.5e-5, 56),
    65_536: Point(24.7, 31, 0.952, 1e-4, 84.5),
}
"""The reference points, by global batch."""


@takes_old_arguments
def mlperf(
    strategy: Any = None,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    device_batch: int | None = None,
    ranks: int | None = None,
    precision: str | None = None,
) -> Recipe:
    """LARS with MLPerf's reference hyperparameters, for batches of 4K to 64K.

    Published: ResNet-50 reaches 75.9 % top-1 on ImageNet in 40, 42, 56 and 84.5 epochs
    at batch 4,096, 8,192, 32,768 and 65,536. What was measured here:
    `examples/README.md`.

    Other batches use the values of the nearest point, with the rate scaled by the
    square root of the batch.

    ```
    fastnet run --workers 2 examples/imagenet.py --recipe mlperf --data-dir DIR
    ```

    Args:
        strategy: The strategy that trains. Defaults to `None`: `ranks` replicas.
        data: The training data: arrays as for `fit`, batches (a `tf.data.Dataset`, a
            `PyDataset`), `ImageRecords`, or the number of examples. Defaults to `None`:
            ImageNet's.
        epochs: Number of epochs; the warm-up keeps its fraction of them. Defaults to
            `None`: the published number.
        global_batch: Examples of an update. Defaults to `None`: 32,768; for smaller
            datasets, the batch that gives as many updates per epoch.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to `None`: a replica's share of the data's batches, otherwise 32.
        ranks: Number of replicas, without a strategy. Defaults to `None`: 1.
        precision: The dtype policy. Defaults to `None`: the recipe's.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the sizes do not fit each other, or the number of examples is not
            known.

    Example:

    >>> recipe = mlperf(global_batch=65_536, ranks=2048)
    >>> recipe.peak, recipe.warmup_epochs, recipe.momentum, recipe.epochs
    (24.7, 31, 0.952, 85)
    """
    sizes = Sizes.of(
        strategy,
        data,
        epochs=epochs,
        global_batch=global_batch,
        device_batch=device_batch,
        ranks=ranks,
    )
    batch = sizes.batch(32_768, _SOURCE)
    near = nearest_batch(batch.value, POINTS)
    point = POINTS[near]
    source = f"{_SOURCE}, at {near:,}"
    if batch.value == near:
        batch = paper(near, _SOURCE)
        peak = paper(point.rate, source)
    else:
        rate = square_root_scaling(point.rate, batch.value, near)
        peak = chosen(float(rate), f"{point.rate:g} at {near:,}, by the square root")
    published = paper(math.ceil(point.epochs), f"{source}: {point.epochs:g}")
    all_epochs = sizes.epochs_of(published)
    warm_up = sizes.part(point.warmup_epochs, published, source)
    decay = Polynomial(
        all_epochs.value - warm_up.value, end=min(1.0, _END_RATE / peak.value)
    )
    settings = {
        "model": paper("resnet50", _SOURCE),
        "epochs": all_epochs,
        "phases": batch._replace(value={0: batch.value}),
        "method": paper("lars", _SOURCE),
        "peak": peak,
        "warmup_start": paper(0.0, "MLPerf's reference code"),
        "warmup_epochs": warm_up,
        "decay": paper(decay, f"{_SOURCE}: power 2, to 1e-4"),
        "momentum": paper(point.momentum, source),
        "momentum_correction": paper(False, "MLPerf's reference code"),
        "weight_decay": paper(point.weight_decay, source),
        "trust_coefficient": paper(0.001, "MLPerf's reference code"),
        "epsilon": paper(0.0, "MLPerf's reference code"),
        "label_smoothing": paper(0.1, "MLPerf's reference code"),
        "zero_gamma": chosen(True, "as Goyal et al., section 5.1"),
        "precision": chosen(
            "float32", "submissions use the precision of their hardware"
        ),
        "grid": chosen("auto", "not part of the reference"),
        "wire_dtype": chosen(None, "not part of the reference"),
    }
    return Recipe.of(
        "mlperf",
        "75.9 % top-1, ResNet-50 on ImageNet, in 40 to 84.5 epochs at batch 4K to 64K",
        sizes,
        settings,
        strategy=strategy,
        precision=precision,
    )
