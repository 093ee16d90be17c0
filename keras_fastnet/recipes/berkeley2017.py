"""Recipe of You et al. 2017: LARS, batch 32K."""

from typing import Any, Literal

from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import (
    Setting,
    chosen,
    nearest_batch,
    paper,
    rule,
)
from keras_fastnet.recipes.sizes import Sizes, takes_old_arguments
from keras_fastnet.schedules import Polynomial, square_root_scaling

BATCH = 32_768
_GROUP = "the group's PyTorch settings for ResNet-50"
_CAFFE = "NVIDIA Caffe's settings for AlexNet-BN"
# Learning rate and epochs of warm-up, by global batch.
_ALEXNET = {8_192: (10.0, 4), 16_384: (24.0, 5), 32_768: (32.0, 10)}


@takes_old_arguments
def berkeley2017(
    strategy: Any = None,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    device_batch: int | None = None,
    ranks: int | None = None,
    precision: str | None = None,
    model: Literal["resnet50", "alexnet_bn"] = "resnet50",
) -> Recipe:
    """LARS with polynomial decay (You et al., arXiv 1708.03888 and 1709.05011).

    Published: ResNet-50, 90 epochs at batch 32,768: 32 minutes on 1,600 Skylake
    processors, 20 on 2,048 KNL; AlexNet-BN, 100 epochs: 11 minutes on 1,024 Skylake;
    batch 32K loses 0.6 points of top-1 accuracy. Measurements with keras_fastnet are in
    `examples/README.md`.

    ```
    fastnet run --workers 2 examples/imagenet.py --recipe berkeley2017 --data-dir DIR
    ```

    Args:
        strategy: The strategy that trains. Defaults to `None`: `ranks` replicas.
        data: The training data: arrays as for `fit`, batches (a `tf.data.Dataset`, a
            `PyDataset`), `ImageRecords`, or the number of examples. Defaults to `None`:
            ImageNet's.
        epochs: Number of epochs; the warm-up keeps its fraction of them. Defaults to
            `None`: 90, for AlexNet-BN 100.
        global_batch: Examples of an update, to which the rate is scaled. Defaults to
            `None`: 32,768; for smaller datasets, the batch that gives as many updates
            per epoch.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to `None`: a replica's share of the data's batches, otherwise 32.
        ranks: Number of replicas, without a strategy. Defaults to `None`: 1.
        precision: The dtype policy. Defaults to `None`: the recipe's.
        model: `"resnet50"` or `"alexnet_bn"`. Defaults to `"resnet50"`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the sizes do not fit each other, the number of examples is not
            known, or there is no such model.

    Example:

    >>> recipe = berkeley2017(ranks=1024)
    >>> recipe.phases, recipe.peak, recipe.rate_at(52)
    ({0: 32768}, 32.0, 8.0)
    """
    if model not in ("resnet50", "alexnet_bn"):
        raise ValueError(
            'berkeley2017 trains "resnet50" or "alexnet_bn". '
            f"Received: model={model!r}. Pass one of them."
        )
    sizes = Sizes.of(
        strategy,
        data,
        epochs=epochs,
        global_batch=global_batch,
        device_batch=device_batch,
        ranks=ranks,
    )
    residual = model == "resnet50"
    published = paper(90 if residual else 100, "arXiv 1709.05011, abstract")
    all_epochs = sizes.epochs_of(published)
    batch = sizes.batch(BATCH, "arXiv 1709.05011")
    if residual:
        rate = square_root_scaling(32.0, batch.value, BATCH)
        source = "32 at 32,768, by the square root of the batch, " + _GROUP
        origin = paper if batch.value == BATCH else rule
        peak = origin(float(rate), source)
        warm_up = sizes.part(14, published, "at 32,768, " + _GROUP)
    else:
        peak, warm_up = _alexnet(batch.value, sizes, published)
    decay = Polynomial(all_epochs.value - warm_up.value)
    settings = {
        "model": paper(model, "arXiv 1709.05011"),
        "epochs": all_epochs,
        "phases": batch._replace(value={0: batch.value}),
        "method": paper("lars", "arXiv 1708.03888, Algorithm 1"),
        "peak": peak,
        "warmup_start": chosen(0.0, "as MLPerf's reference"),
        "warmup_epochs": warm_up,
        "decay": paper(decay, "arXiv 1708.03888, Algorithm 1: polynomial, power 2"),
        "momentum": paper(0.9, _GROUP if residual else _CAFFE),
        "momentum_correction": chosen(False, "Algorithm 1 has none"),
        "weight_decay": paper(1e-4, _GROUP) if residual else paper(5e-4, _CAFFE),
        "trust_coefficient": chosen(0.001, "as MLPerf's reference"),
        "epsilon": paper(0.0, _GROUP) if residual else chosen(0.0, "Algorithm 1"),
        "label_smoothing": chosen(0.0, "the papers' abstracts name none"),
        "zero_gamma": chosen(residual, "as Goyal et al., section 5.1"),
        "precision": chosen("float32", "processors of 2017 had no lower precision"),
        "grid": chosen("auto", "not stated"),
        "wire_dtype": chosen(None, "not stated"),
    }
    return Recipe.of(
        "berkeley2017",
        "90 epochs of ResNet-50 on ImageNet, batch 32,768, in 20 min on 2,048 KNL; "
        "batch 32K loses 0.6 points",
        sizes,
        settings,
        strategy=strategy,
        precision=precision,
    )


def _alexnet(batch: int, sizes: Sizes, published: Setting) -> tuple[Setting, Setting]:
    """Returns peak and warm-up for the nearest published batch, scaled if needed."""
    near = nearest_batch(batch, _ALEXNET)
    rate, epochs = _ALEXNET[near]
    warm_up = sizes.part(epochs, published, _CAFFE)
    if batch == near:
        return paper(rate, _CAFFE), warm_up
    scaled = square_root_scaling(rate, batch, near)
    why = f"{rate:g} at {near:,} ({_CAFFE}), by the square root of the batch"
    return chosen(float(scaled), why), warm_up
