"""Images and labels in TFRecord files, for training and evaluation."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_fastnet.arguments import (
    checked_bool,
    checked_integer,
    checked_number,
)
from keras_fastnet.datasets.arguments import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    check_batch,
    check_choice,
    checked_colour,
    checked_floating,
)
from keras_fastnet.datasets.batches import Batches
from keras_fastnet.datasets.reading import read
from keras_fastnet.datasets.record_split import RecordSplit
from keras_fastnet.datasets.sharding import Readers, Share
from keras_fastnet.strategies import TorusStrategy, TPUStrategy


class ImageRecords(RecordSplit):
    """One split of a labelled image dataset in TFRecord files, such as ImageNet.

    Every record is a `tf.train.Example` with an encoded image and an integer. The
    constructor checks the folder, the first record of every file and the number of
    records.

    Create the strategy first: reading may run TensorFlow.

    Args:
        data_dir: The folder of the files.
        split: Prefix of the file names, such as `train` of `train-00000-of-01024`.
        classes: Number of classes. Defaults to `None`: the number of lines in the
            folder's labels.txt. If there is such a file, the numbers must agree.
        first_label: The smallest label in the files. Defaults to `1`, as ImageNet's
            files reserve 0 for a background class; `0` if there is none.
        image_key: The feature that holds a JPEG or PNG file. Defaults to
            `"image/encoded"`.
        label_key: The feature that holds the label. Defaults to
            `"image/class/label"`.
        examples: Number of records, if counting them takes too long. Defaults to
            `None`: they are counted by their headers. Each of several workers counts
            the records it reads in any case; for a single one the number must be right.
        corrupt: Handling of records that cannot be read or decoded: `"fail"` stops the
            training at the first; `"skip"` reads and decodes all records now, warns of
            every corrupt one and omits it. Defaults to `"fail"`.

    Attributes:
        data_dir: The folder.
        split: The split.
        files: Its files.
        classes: Number of classes.
        examples: Number of records; with `corrupt="skip"`, of intact ones.

    Raises:
        FileNotFoundError: If there is no such folder, or no such file in it.
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of its range; a file is empty, ends within a
            record, or is not a TFRecord file; a first record has other features or a
            label out of range; or labels.txt does not have `classes` lines.

    Example:

    ```python
    strategy = keras_fastnet.TorusStrategy()
    train = ImageRecords("imagenet", "train", classes=1000)
    validation = ImageRecords("imagenet", "validation", classes=1000)
    ...
    with train.naming_corrupt():
        model.fit(
            train.for_training(8_192, 224, strategy=strategy),
            validation_data=validation.for_evaluation(8_192, 224, strategy=strategy),
            shuffle=False,
        )
    ```
    """

    def for_training(
        self,
        batch_size: int,
        image_size: int,
        *,
        strategy: TorusStrategy | TPUStrategy | None = None,
        seed: int = 0,
        augmentation: Literal["inception", "pad"] | None = "inception",
        shuffle_buffer: int = 8192,
        padding: int = 4,
        padding_mode: Literal["reflect", "zeros"] = "reflect",
        one_hot: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        dtype: str = "float32",
    ) -> tf.data.Dataset:
        """Returns shuffled, augmented batches of one epoch, in another order each time.

        Files are read in random order, 16 in parallel, and shuffled in a buffer of
        `shuffle_buffer` records. Order and augmentation follow from `seed`, the epoch,
        and the seed of `keras.utils.set_random_seed`, if it was called. Each new
        iterator is the next epoch, so that `keras_fastnet.callbacks.BackupAndRestore`
        can resume within any epoch.

        Args:
            batch_size: The global batch, a multiple of the number of replicas. The last
                batch may be smaller.
            image_size: Height and width in pixels.
            strategy: The strategy whose workers share the examples; each reads its own.
                Defaults to `None`: one device.
            seed: An integer >= 0. Defaults to `0`.
            augmentation: `"inception"` crops a random 8 to 100 % of the area, with an
                aspect ratio from 3/4 to 4/3, and mirrors at random (Szegedy et al.
                2015, arXiv 1409.4842, section 6; Goyal et al. 2017, arXiv 1706.02677,
                section 5.1). `"pad"` pads the central square, crops it at a random
                position, and mirrors at random (He et al. 2015, arXiv 1512.03385,
                section 4.2). `None` takes the central square. Defaults to
                `"inception"`.
            shuffle_buffer: Size of the buffer in records, which are kept encoded: about
                110 kB each for ImageNet. Defaults to `8192`.
            padding: For `"pad"`, pixels on each side. Defaults to `4`.
            padding_mode: For `"pad"`, `"reflect"` or `"zeros"` (the mean colour).
                Defaults to `"reflect"`.
            one_hot: Whether labels are one-hot, for
                `keras.losses.CategoricalCrossentropy(label_smoothing=0.1)`. Defaults
                to `False`.
            mean: Mean of red, green and blue, from 0 to 255. Defaults to ImageNet's.
            std: Standard deviation of each, above 0. Defaults to ImageNet's.
            dtype: Floating-point dtype of the images. Defaults to `"float32"`.

        Returns:
            A dataset of known cardinality, distributed by `strategy`. Images are
            `(batch, image_size, image_size, 3)`, normalized; labels are int32 from 0,
            `(batch,)`, or float32, `(batch, classes)`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of its range, or a file of this worker,
                which is counted now, is damaged.
        """
        check_choice("augmentation", augmentation, ("inception", "pad", None))
        check_choice("padding_mode", padding_mode, ("reflect", "zeros"))
        checked_integer("padding", padding, at_least=0)
        checked_integer("seed", seed, at_least=0)
        checked_integer("shuffle_buffer", shuffle_buffer, at_least=1)
        readers = Readers.of(strategy)
        batches = self._batches(
            batch_size, readers, image_size, one_hot, mean, std, dtype
        )
        if augmentation == "pad" and padding >= image_size:
            raise ValueError(
                "`padding` must be less than `image_size`. Received: padding="
                f"{padding}, image_size={image_size}. Pass a smaller padding."
            )
        share = self.share(readers.workers, readers.rank)
        # Two independent seeds, which differ between workers.
        seeds = np.random.SeedSequence([seed, readers.rank]).generate_state(2)
        of_order, of_images = (int(number) for number in seeds)
        shuffle = (of_order, shuffle_buffer)
        records = read(self.files, share, self._intact, shuffle)
        dataset = batches.for_training(
            records, of_images, augmentation, padding, padding_mode
        )
        return _ready(dataset, share, batches.batch_size, strategy)

    def for_evaluation(
        self,
        batch_size: int,
        image_size: int,
        *,
        crop_fraction: float = 0.875,
        strategy: TorusStrategy | TPUStrategy | None = None,
        one_hot: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        dtype: str = "float32",
    ) -> tf.data.Dataset:
        """Returns batches of central crops, in the order of the files.

        Args:
            batch_size: As in `for_training`.
            image_size: Height and width in pixels.
            crop_fraction: Side of the crop, as a fraction of the image's shorter side;
                `1.0` for the central square. Images of exactly `(image_size,
                image_size)` are not cropped. Defaults to `0.875`: 224 of 256 pixels
                (Goyal et al. 2017, arXiv 1706.02677, section 5.1).
            strategy: As in `for_training`.
            one_hot: As in `for_training`.
            mean: As in `for_training`.
            std: As in `for_training`.
            dtype: As in `for_training`.

        Returns:
            A dataset, as for `for_training`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of its range, or a file of this worker,
                which is counted now, is damaged.
        """
        if checked_number("crop_fraction", crop_fraction, above=0) > 1:
            raise ValueError(
                "`crop_fraction` must be at most 1. Received: crop_fraction="
                f"{crop_fraction}. Pass `1.0` for the central square."
            )
        readers = Readers.of(strategy)
        batches = self._batches(
            batch_size, readers, image_size, one_hot, mean, std, dtype
        )
        share = self.share(readers.workers, readers.rank)
        records = read(self.files, share, self._intact)
        dataset = batches.for_evaluation(records, crop_fraction)
        return _ready(dataset, share, batches.batch_size, strategy)

    def _batches(
        self,
        batch_size: int,
        readers: Readers,
        image_size: int,
        one_hot: bool,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: str,
    ) -> Batches:
        checked_integer("batch_size", batch_size, at_least=1)
        check_batch(batch_size, readers.replicas)
        return Batches(
            paths=self.files,
            image_key=self.image_key,
            label_key=self.label_key,
            first_label=self.first_label,
            classes=self.classes,
            batch_size=batch_size // readers.replicas,
            image_size=checked_integer("image_size", image_size, at_least=1),
            one_hot=checked_bool("one_hot", one_hot),
            mean=checked_colour("mean", mean),
            std=checked_colour("std", std, above=0),
            dtype=checked_floating("dtype", dtype),
        )


def _ready(
    dataset: tf.data.Dataset,
    share: Share,
    batch_size: int,
    strategy: TorusStrategy | TPUStrategy | None,
) -> tf.data.Dataset:
    """Sets the number of batches and options, and distributes the dataset."""
    batches = -(-share.records // batch_size)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    options = tf.data.Options()
    options.deterministic = True
    dataset = dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return dataset
    return strategy.distribute_datasets_from_function(lambda _: dataset)
