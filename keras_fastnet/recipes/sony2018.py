"""Recipe of Mikami et al. 2018: ImageNet in 224 seconds."""

from typing import Any

from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.settings import chosen, paper, rule
from keras_fastnet.recipes.sizes import Sizes, takes_old_arguments
from keras_fastnet.schedules import Polynomial, square_root_scaling

# 34K and 68K on 2,176 GPUs, with K = 1,024: 16 and 32 examples per GPU.
BATCH = 34_816
GROWTH = 2


@takes_old_arguments
def sony2018(
    strategy: Any = None,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    device_batch: int | None = None,
    ranks: int | None = None,
    precision: str | None = None,
) -> Recipe:
    """Batch-size control, 2-D torus, mixed precision (Mikami et al., 1811.05233).

    Published: ResNet-50, batch 34K growing to 68K, 2,176 V100 GPUs, 224 seconds,
    75.03 % top-1 on ImageNet. Measurements with keras_fastnet are in
    `examples/README.md`.

    The paper's table of batches by epoch, its rates and its coefficients were not
    available when this was written. The paper is reported to state the two batches, a
    warm-up of five epochs at the smaller one, float16 in the forward and backward pass,
    LARS, label smoothing and the torus. All other values are chosen, as the table says.

    ```
    fastnet run --workers 2 examples/imagenet.py --recipe sony2018 --data-dir DIR
    ```

    Args:
        strategy: The strategy that trains. Defaults to `None`: `ranks` replicas.
        data: The training data: arrays as for `fit`, batches (a `tf.data.Dataset`, a
            `PyDataset`), `ImageRecords`, or the number of examples. Defaults to `None`:
            ImageNet's.
        epochs: Number of epochs; the warm-up keeps its fraction of them, and the batch
            grows after that many whole epochs, at least 1. Defaults to `None`: 90.
        global_batch: Examples of an update in the first phase, then doubled. Defaults
            to `None`: 34,816; for smaller datasets, the batch that gives as many
            updates per epoch.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to `None`: a replica's share of the data's batches, otherwise 16, the
            paper's 34K on 2,176 GPUs.
        ranks: Number of replicas, without a strategy. Defaults to `None`: 1.
        precision: The dtype policy. Defaults to `None`: the recipe's.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the sizes do not fit each other, or the number of examples is not
            known.

    Example:

    >>> recipe = sony2018(ranks=2176)
    >>> recipe.phases, [recipe.updates_per_epoch(epoch) for epoch in (0, 5)]
    ({0: 34816, 5: 69632}, [37, 19])
    """
    sizes = Sizes.of(
        strategy,
        data,
        epochs=epochs,
        global_batch=global_batch,
        device_batch=device_batch,
        ranks=ranks,
        usual_device_batch=16,
    )
    published = chosen(90, "as the other systems; the paper's number was not available")
    all_epochs = sizes.epochs_of(published)
    batch = sizes.batch(BATCH, "34K, reported of the paper")
    warm_up = sizes.part(5, published, "reported of the paper")
    grown = max(1, round(warm_up.value))
    phases = {0: batch.value, grown: GROWTH * batch.value}
    peak = square_root_scaling(32.0, batch.value, 32_768)
    settings = {
        "model": paper("resnet50", "abstract"),
        "epochs": all_epochs,
        "phases": batch._replace(
            value=phases, source=f"{batch.source}; twice that after the warm-up"
        ),
        "method": paper("lars", "section 2.1"),
        "peak": chosen(
            float(peak),
            "as berkeley2017: 32 at 32,768, by the square root of the batch",
        ),
        "warmup_start": chosen(0.0, "as MLPerf's reference"),
        "warmup_epochs": warm_up,
        "decay": chosen(
            Polynomial(all_epochs.value - warm_up.value),
            "as LARS's Algorithm 1: power 2",
        ),
        "momentum": chosen(0.9, "as berkeley2017"),
        "momentum_correction": chosen(False, "LARS's Algorithm 1 has none"),
        "weight_decay": chosen(1e-4, "as berkeley2017"),
        "trust_coefficient": chosen(0.001, "as MLPerf's reference"),
        "epsilon": chosen(0.0, "as berkeley2017"),
        "label_smoothing": rule(
            0.1, "the abstract names it; 0.1 is chosen, as MLPerf's"
        ),
        "zero_gamma": chosen(True, "as Goyal et al., section 5.1"),
        "precision": paper("mixed_float16", "forward and backward in float16"),
        "grid": paper("auto", "section 2.2: the 2-D torus"),
        "wire_dtype": chosen(
            None, "half precision was not confirmed; see TorusStrategy"
        ),
    }
    return Recipe.of(
        "sony2018",
        "75.03 % top-1, ResNet-50 on ImageNet, batch 34K to 68K, 2,176 V100, 224 s",
        sizes,
        settings,
        strategy=strategy,
        precision=precision,
    )
