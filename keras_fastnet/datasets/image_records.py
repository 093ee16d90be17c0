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
    """One split of a labelled image dataset in TFRecord files, as of ImageNet.

    Every record is a `tf.train.Example` with an encoded image and an integer. What can
    be known before training is checked here: the folder, the first record of every
    file, the number of records.

    Make the strategy first: reading may run TensorFlow.

    Args:
        data_dir: The folder of the files.
        split: The files are called `<split>-*`, such as `train-00000-of-01024`.
        classes: Number of classes. Defaults to `None`: the number of lines in the
            folder's labels.txt, with which any other number must agree.
        first_label: The smallest label in the files. Defaults to `1`, as ImageNet's
            files keep 0 for a background class; `0` where there is none.
        image_key: The feature that holds a JPEG or PNG file. Defaults to
            `"image/encoded"`.
        label_key: The feature that holds the label. Defaults to
            `"image/class/label"`.
        examples: Number of records, where counting them takes too long. Defaults to
            `None`: they are counted, by their headers. One of several workers counts
            what it reads in any case; for a single one the number must be right.
        corrupt: What to do about records that cannot be read or decoded: `"fail"`
            stops the training at the first; `"skip"` reads and decodes everything
            now, warns of every such record, and leaves it out. Defaults to `"fail"`.

    Attributes:
        data_dir: The folder.
        split: The split.
        files: Its files.
        classes: Number of classes.
        examples: Number of records; with `corrupt="skip"`, of those that are left.

    Raises:
        FileNotFoundError: There is no such folder, or no such file in it.
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range. A file is empty, ends within a
            record, or is no TFRecord file; a first record has other features or a
            label out of range; labels.txt has another number of lines than `classes`.

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
        """Returns shuffled, augmented batches: one epoch, another one each time.

        Files come in random order, 16 are read side by side, and of `shuffle_buffer`
        records a random one is next. Order and augmentation follow from `seed`, the
        epoch, and what `keras.utils.set_random_seed` was given, if it was called:
        epochs are counted by the iterators begun, so that
        `keras_fastnet.callbacks.BackupAndRestore` can go on within any.

        Args:
            batch_size: Examples in a batch of all replicas together, a multiple of
                their number. The last batch holds what is left.
            image_size: Height and width in pixels.
            strategy: The strategy whose workers share the examples; each reads its own.
                Defaults to `None`: one device.
            seed: An integer from 0. Defaults to `0`.
            augmentation: `"inception"` takes a random 8 to 100 % of the area, 3/4 to
                4/3 as wide as high, and mirrors (Szegedy et al. 2015, arXiv 1409.4842,
                section 6; Goyal et al. 2017, arXiv 1706.02677, section 5.1). `"pad"`
                pads the central square, crops to its size at random, and mirrors (He
                et al. 2015, arXiv 1512.03385, section 4.2). `None` only takes the
                central square. Defaults to `"inception"`.
            shuffle_buffer: In records, which are kept encoded: for ImageNet about 110
                kB each. Defaults to `8192`.
            padding: For `"pad"`, pixels on each side. Defaults to `4`.
            padding_mode: For `"pad"`, `"reflect"` or `"zeros"`, which are the mean
                colour. Defaults to `"reflect"`.
            one_hot: Whether labels are one-hot, for
                `keras.losses.CategoricalCrossentropy(label_smoothing=0.1)`. Defaults
                to `False`.
            mean: Of red, green, blue, from 0 to 255. Defaults to ImageNet's.
            std: Likewise. Defaults to ImageNet's.
            dtype: Of the images, a floating type. Defaults to `"float32"`.

        Returns:
            A dataset of known cardinality, or what `strategy` makes of it. Images are
            `(batch, image_size, image_size, 3)`, normalized; labels are int32 from 0,
            `(batch,)`, or float32, `(batch, classes)`.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of its range, or a file of this worker,
                counted now, is damaged.
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
                f"{padding}, image_size={image_size}. Pass a smaller one."
            )
        share = self.share(readers.workers, readers.rank)
        # Independent of each other; workers augment differently.
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
            crop_fraction: Side of the crop, as a part of the image's shorter side;
                `1.0` for the central square. Images stored as `(image_size,
                image_size)` are taken whole. Defaults to `0.875`: 224 of 256 pixels
                (Goyal et al. 2017, arXiv 1706.02677, section 5.1).
            strategy: As in `for_training`.
            one_hot: As in `for_training`.
            mean: As in `for_training`.
            std: As in `for_training`.
            dtype: As in `for_training`.

        Returns:
            A dataset as that of `for_training`.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of its range, or a file of this worker,
                counted now, is damaged.
        """
        if checked_number("crop_fraction", crop_fraction, above=0) > 1:
            raise ValueError(
                "`crop_fraction` must be 1 or less. Received: crop_fraction="
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
    """Tells TensorFlow how many batches there are, and that they are dealt out."""
    batches = -(-share.records // batch_size)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    options = tf.data.Options()
    options.deterministic = True
    dataset = dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return dataset
    return strategy.distribute_datasets_from_function(lambda _: dataset)
