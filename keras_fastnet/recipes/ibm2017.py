"""Recipe of IBM PowerAI DDL 2017: topology-aware all-reduce."""

import warnings
from typing import Any, Literal

from keras_fastnet.recipes.facebook2017 import settings_for
from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import chosen, paper
from keras_fastnet.recipes.sizes import Sizes, takes_old_arguments

_AS_GOYAL = "as facebook2017"


@takes_old_arguments
def ibm2017(
    strategy: Any = None,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    device_batch: int | None = None,
    ranks: int | None = None,
    precision: str | None = None,
    grid: Literal["auto", "ring"] | tuple[int, int] | None = None,
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
        strategy: The strategy that trains. Defaults to `None`: `ranks` replicas.
        data: The training data: arrays as for `fit`, batches (a `tf.data.Dataset`, a
            `PyDataset`), `ImageRecords`, or the number of examples. Defaults to `None`:
            ImageNet's.
        epochs: Number of epochs; warm-up and steps keep their fractions of them.
            Defaults to `None`: 90.
        global_batch: Examples of an update, to which the rate is scaled. Defaults to
            `None`: 8,192; for smaller datasets, the batch that gives as many updates
            per epoch.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to `None`: a replica's share of the data's batches, otherwise 32.
        ranks: Number of replicas, without a strategy. Defaults to `None`: 1.
        precision: The dtype policy. Defaults to `None`: the recipe's.
        grid: Deprecated: pass it to the strategy, `TorusStrategy(grid=(64, 4))` on the
            paper's machines, one row per server. Defaults to `None`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the sizes do not fit each other, or the number of examples is not
            known.

    Example:

    >>> recipe = ibm2017(ranks=256)
    >>> recipe.model, recipe.grid, recipe.peak
    ('resnet101', 'auto', 3.2)
    """
    sizes = Sizes.of(
        strategy,
        data,
        epochs=epochs,
        global_batch=global_batch,
        device_batch=device_batch,
        ranks=ranks,
    )
    base = settings_for(sizes)
    settings = {
        name: chosen(setting.value, f"{_AS_GOYAL}: {setting.source}")
        for name, setting in base.items()
    }
    settings["model"] = paper("resnet101", "abstract")
    settings["epochs"] = base["epochs"]._replace(source="abstract, for ResNet-50")
    settings["grid"] = chosen(
        "auto", "set by hand in the paper; the same on hosts of equal size"
    )
    if grid is not None:
        warnings.warn(
            "`grid` of ibm2017 is deprecated. Pass it to the strategy: "
            f"`TorusStrategy(grid={grid!r})`.",
            DeprecationWarning,
            stacklevel=3,
        )
        settings["grid"] = chosen(grid, "as passed")
    return Recipe.of(
        "ibm2017",
        "33.8 % top-1, ResNet-101 on ImageNet-22K, 256 P100, 7 h; ResNet-50 on "
        "ImageNet-1K in 50 min; 95 % efficiency",
        sizes,
        settings,
        strategy=strategy,
        precision=precision,
    )
