"""Recipe of Goyal et al. 2017: ImageNet in one hour."""

from typing import Any

from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import Setting, chosen, paper, rule
from keras_fastnet.recipes.sizes import Sizes, takes_old_arguments
from keras_fastnet.schedules import Steps, linear_scaling

BATCH = 8192
EPOCHS = 90
BASE_RATE = 0.1


@takes_old_arguments
def facebook2017(
    strategy: Any = None,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    device_batch: int | None = None,
    ranks: int | None = None,
    precision: str | None = None,
) -> Recipe:
    """SGD with linear scaling and gradual warm-up (Goyal et al., arXiv 1706.02677).

    Published: ResNet-50, batch 8,192, 256 P100 GPUs, one hour, 76.3 % top-1 on
    ImageNet. Measurements with keras_fastnet are in
    `examples/README.md`.

    ```
    fastnet run --workers 2 examples/imagenet.py --recipe facebook2017 --data-dir DIR
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

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the sizes do not fit each other, or the number of examples is not
            known.

    Example:

    >>> recipe = facebook2017(ranks=256)
    >>> [round(recipe.rate_at(epoch), 4) for epoch in (0, 2.5, 5, 30, 60, 80)]
    [0.1, 1.65, 3.2, 0.32, 0.032, 0.0032]
    """
    sizes = Sizes.of(
        strategy,
        data,
        epochs=epochs,
        global_batch=global_batch,
        device_batch=device_batch,
        ranks=ranks,
    )
    return Recipe.of(
        "facebook2017",
        "76.3 % top-1, ResNet-50 on ImageNet, batch 8,192, 256 P100, 1 h",
        sizes,
        settings_for(sizes),
        strategy=strategy,
        precision=precision,
    )


def settings_for(sizes: Sizes) -> dict[str, Setting]:
    """Returns the settings for the sizes of a training.

    Args:
        sizes: The sizes.
    """
    published = paper(EPOCHS, "section 5.1")
    batch = sizes.batch(BATCH, "section 5.1")
    peak = linear_scaling(BASE_RATE, batch.value)
    warm_up = sizes.part(5, published, "section 2.2")
    all_epochs = sizes.epochs_of(published)
    # Epochs since the warm-up, at the paper's fractions of all epochs.
    steps = {
        epoch * all_epochs.value / EPOCHS - warm_up.value: factor
        for epoch, factor in ((30, 0.1), (60, 0.01), (80, 0.001))
    }
    start = paper(BASE_RATE, "section 2.2: from the rate of batch 256")
    if peak <= BASE_RATE:
        start = chosen(0.0, "the peak is not above the paper's 0.1")
    return {
        "model": paper("resnet50", "section 5.1"),
        "epochs": all_epochs,
        "phases": batch._replace(value={0: batch.value}),
        "method": paper("sgd", "section 5.1, momentum without Nesterov"),
        "peak": rule(peak, f"{peak.derivation}, section 2.1"),
        "warmup_start": start,
        "warmup_epochs": warm_up,
        # Has the origin of the warm-up, since both depend on the number of epochs.
        "decay": warm_up._replace(
            value=Steps(steps),
            source="a tenth from epochs 30, 60, 80 of 90; section 5.1",
        ),
        "momentum": paper(0.9, "section 5.1"),
        "momentum_correction": paper(True, "section 3.1, remark 3"),
        "weight_decay": paper(1e-4, "section 5.1; not on batch normalization"),
        "trust_coefficient": chosen(1.0, "not used without a trust ratio"),
        "epsilon": chosen(0.0, "not used without a trust ratio"),
        "label_smoothing": chosen(0.0, "the paper names none"),
        "zero_gamma": paper(True, "section 5.1"),
        "precision": chosen("float32", "the paper names no other"),
        "grid": chosen("auto", "the paper halves and doubles within servers of 8"),
        "wire_dtype": chosen(None, "the paper names no other than float32"),
    }
