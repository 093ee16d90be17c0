"""Recipe of IBM PowerAI DDL 2017: topology-aware all-reduce."""

from typing import Literal

from keras_fastnet.recipes.facebook2017 import facebook2017
from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import IMAGENET, Setting, chosen, paper

_AS_GOYAL = "as facebook2017"


def ibm2017(
    train_size: int = IMAGENET,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    ranks: int = 1,
    device_batch: int = 32,
    grid: Literal["auto", "ring"] | tuple[int, int] = "auto",
) -> Recipe:
    """ResNet-101, fully synchronous, on a grid set by hand (Cho et al., 1708.02188).

    Published: ResNet-101 on ImageNet-22K (7.5 million images), 64 servers with 4 P100
    GPUs each, 7 hours, 33.8 % top-1; ResNet-50 on ImageNet-1K, 90 epochs in 50 minutes;
    95 % scaling efficiency at 256 GPUs. Measurements with keras_fastnet are in
    `examples/README.md`.

    The paper is about communication: it states model, data and machines. Its numerics
    follow Goyal et al., and so does this recipe.

    ```
    fastnet run --workers 2 examples/imagenet.py --recipe ibm2017 --grid 2x1 ...
    ```

    Args:
        train_size: Training examples. Defaults to ImageNet-1K's.
        epochs: Number of epochs; warm-up and steps keep their fractions of them.
            Defaults to `None`: 90.
        global_batch: Examples of an update, to which the rate is scaled. Defaults to
            `None`: 8,192; for smaller datasets, the batch that gives as many updates
            per epoch.
        ranks: Number of replicas. Defaults to 1.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to 32.
        grid: Rows and columns; on the paper's machines `(64, 4)`, one row per server.
            Defaults to `"auto"`, which also gives every host a row.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If the sizes do not fit each other.

    Example:

    >>> recipe = ibm2017(ranks=256, grid=(64, 4))
    >>> recipe.model, recipe.strategy_options["grid"], recipe.peak
    ('resnet101', (64, 4), 3.2)
    """
    base = facebook2017(
        train_size,
        epochs=epochs,
        global_batch=global_batch,
        ranks=ranks,
        device_batch=device_batch,
    )
    settings: dict[str, Setting] = {
        name: chosen(setting.value, f"{_AS_GOYAL}: {setting.source}")
        for name, setting in base.settings.items()
    }
    settings["model"] = paper("resnet101", "abstract")
    settings["epochs"] = base.settings["epochs"]._replace(
        source="abstract, for ResNet-50"
    )
    settings["grid"] = (
        chosen(grid, "set by hand in the paper; the same on hosts of equal size")
        if grid == "auto"
        else chosen(grid, "as passed; set by hand for the machines, as in the paper")
    )
    return Recipe.of(
        "ibm2017",
        "33.8 % top-1, ResNet-101 on ImageNet-22K, 256 P100, 7 h; ResNet-50 on "
        "ImageNet-1K in 50 min; 95 % efficiency",
        base.sizes,
        settings,
    )
