"""Images and labels in TFRecord files, for training and evaluation."""

import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from keras_fastnet.arguments import (
    checked_bool,
    checked_choice,
    checked_integer,
    checked_number,
    multiples_near,
)
from keras_fastnet.datasets.corruption import CorruptRecord, examine
from keras_fastnet.datasets.first_records import (
    check_classes,
    check_first_record,
    describe_labels,
)
from keras_fastnet.datasets.image_ops import (
    PADDING,
    decode_center,
    decode_random_crop,
    flip,
    parse,
    shift,
)
from keras_fastnet.datasets.reading import Share, read, share_records
from keras_fastnet.datasets.record_files import (
    RecordSpan,
    count_records,
    find_files,
    in_threads,
)
from keras_fastnet.strategies import TorusStrategy, TPUStrategy

# Of ImageNet's training images: red, green and blue, from 0 to 255.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
# Random numbers for each example: two for the crop, one for mirroring.
_NUMBERS = 3


class ImageRecords:
    """One split of a labelled image dataset in TFRecord files, such as ImageNet.

    Every record is a `tf.train.Example` with an encoded image (JPEG, PNG or GIF) and an
    integer. The constructor checks the names of the files, the first record of each and
    the number of records.

    Create the strategy first: reading may run TensorFlow.

    Args:
        data_dir: The folder of the files.
        split: Prefix of the file names, such as `train` of `train-00000-of-01024`.
        classes: Number of classes. Defaults to `None`: the number of lines in the
            folder's labels.txt. If there is such a file, the numbers must agree.
        first_label: The smallest label in the files. Defaults to `1`, as ImageNet's
            files reserve 0 for a background class; `0` if there is none.
        image_key: The feature that holds an image file. Defaults to `"image/encoded"`.
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
        ValueError: If an argument is out of its range; files that count themselves
            (`-of-01024`) are missing or of several conversions; a file is empty, ends
            within a record, or is not a TFRecord file; a first record has other
            features or a label out of range; or labels.txt does not have `classes`
            lines.

    Example:

    ```python
    strategy = keras_fastnet.TorusStrategy()
    train = ImageRecords("imagenet", "train", classes=1000)
    validation = ImageRecords("imagenet", "validation", classes=1000)
    ...
    model.fit(
        train.for_training(8_192, 224, strategy=strategy),
        validation_data=validation.for_evaluation(8_192, 224, strategy=strategy),
        shuffle=False,
    )
    ```
    """

    def __init__(
        self,
        data_dir: str | pathlib.Path,
        split: str,
        classes: int | None = None,
        *,
        first_label: int = 1,
        image_key: str = "image/encoded",
        label_key: str = "image/class/label",
        examples: int | None = None,
        corrupt: Literal["fail", "skip"] = "fail",
    ):
        meanings = {"fail": "stop at the first", "skip": "omit them"}
        checked_choice("corrupt", corrupt, meanings)
        if classes is not None:
            checked_integer("classes", classes, at_least=1)
        if examples is not None:
            checked_integer("examples", examples, at_least=1)
        self.first_label = checked_integer("first_label", first_label, at_least=0)
        self.image_key, self.label_key = image_key, label_key
        self.data_dir = pathlib.Path(data_dir)
        self.split = split
        self.files = find_files(self.data_dir, split)
        self.classes = check_classes(self.data_dir, classes)
        # The number of records by file, and positions of the intact ones in files that
        # have others too.
        self._counts: dict[int, int] = {}
        self._intact: dict[int, list[RecordSpan]] = {}
        keys = image_key, label_key
        labels = range(first_label, first_label + self.classes)
        in_threads(
            lambda path: check_first_record(path, keys, labels, corrupt == "fail"),
            self.files,
        )
        if corrupt == "skip":
            self._leave_out_corrupt()
            examples = None
        self.examples = examples or sum(self._count(range(len(self.files))))

    def find_corrupt(self) -> list[CorruptRecord]:
        """Reads and decodes all records, and returns the corrupt ones.

        A record is corrupt if its checksum is wrong, it lacks a feature, or its image
        cannot be decoded. If a record's length is damaged or the file ends within a
        record, the records after it cannot be found: they are one entry, the last of
        the file.

        Returns:
            Tuples of `file`, `record` (from 0) and `reason`.
        """
        found = examine(self.files, self.image_key, self.label_key)
        return [record for file in found for record in file.corrupt]

    def for_training(
        self,
        batch_size: int,
        image_size: int,
        *,
        strategy: TorusStrategy | TPUStrategy | None = None,
        seed: int = 0,
        augmentation: Literal["inception", "pad"] | None = "inception",
        shuffle_buffer: int = 8192,
        one_hot: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
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
                section 5.1). `"pad"` moves the central square by up to 4 pixels at
                random, and mirrors at random (He et al. 2015, arXiv 1512.03385, section
                4.2, with the image reflected at its edges instead of zeros). `None`
                takes the central square. Defaults to `"inception"`.
            shuffle_buffer: Size of the buffer in records, which are kept encoded: about
                110 kB each for ImageNet. Defaults to `8192`.
            one_hot: Whether labels are one-hot, for
                `keras.losses.CategoricalCrossentropy(label_smoothing=0.1)`. Defaults
                to `False`.
            mean: Mean of red, green and blue, from 0 to 255. Defaults to ImageNet's.
            std: Standard deviation of each, above 0. Defaults to ImageNet's.

        Returns:
            A dataset of known cardinality, distributed by `strategy`. Images are
            float32, `(batch, image_size, image_size, 3)`, normalized; labels are int32
            from 0, `(batch,)`, or float32, `(batch, classes)`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of its range, or a file of this worker,
                which is counted now, is damaged.
        """
        if augmentation is not None:
            meanings = {"inception": "random parts", "pad": "moved by some pixels"}
            checked_choice("augmentation", augmentation, meanings)
        checked_integer("seed", seed, at_least=0)
        checked_integer("shuffle_buffer", shuffle_buffer, at_least=1)
        least = PADDING + 1 if augmentation == "pad" else 1
        checked_integer("image_size", image_size, at_least=least)
        batches = _Batches(batch_size, image_size, one_hot, mean, std).checked(strategy)
        share = self._share(strategy)
        # Two independent seeds, which differ between workers.
        rank = 0 if strategy is None else strategy.rank
        seeds = np.random.SeedSequence([seed, rank]).generate_state(2)
        of_order, of_images = (int(number) for number in seeds)
        records = read(self.files, share, self._intact, (of_order, shuffle_buffer))
        # Other numbers for every example and epoch. Random operations within `map`
        # would restart when an interrupted epoch is resumed.
        random = tf.data.Dataset.random(of_images, rerandomize_each_iteration=True)
        random = random.batch(_NUMBERS, drop_remainder=True)

        def decode(encoded: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            if augmentation == "inception":
                return decode_random_crop(encoded, image_size, numbers[:2])
            return decode_center(encoded, image_size, 1.0)

        def augment(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            if augmentation is None:
                return images
            if augmentation == "pad":
                images = shift(images, numbers[:, :2])
            return flip(images, numbers[:, 2])

        zipped = tf.data.Dataset.zip((records, random))
        return self._make(zipped, decode, augment, batches, share, strategy)

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

        Returns:
            As `for_training`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of its range, or a file of this worker,
                which is counted now, is damaged.
        """
        checked_number("crop_fraction", crop_fraction, above=0.0)
        if crop_fraction > 1:
            raise ValueError(
                "`crop_fraction` must be at most 1. "
                f"Received: crop_fraction={crop_fraction}. Pass, for example, 0.875."
            )
        batches = _Batches(batch_size, image_size, one_hot, mean, std).checked(strategy)
        share = self._share(strategy)
        records = read(self.files, share, self._intact)
        return self._make(
            records.map(lambda *record: (record, ())),
            lambda encoded, _: decode_center(encoded, image_size, crop_fraction),
            lambda images, _: images,
            batches,
            share,
            strategy,
        )

    def _share(self, strategy: Any) -> Share:
        if strategy is None or strategy.num_workers == 1:
            everything = range(len(self.files))
            return Share(everything, [0] * len(everything), 1, self.examples)
        return share_records(
            strategy.rank, strategy.num_workers, len(self.files), self._count
        )

    def _make(
        self,
        records: tf.data.Dataset,
        decode: Callable[[tf.Tensor, Any], tf.Tensor],
        augment: Callable[[tf.Tensor, Any], tf.Tensor],
        batches: "_Batches",
        share: Share,
        strategy: Any,
    ) -> tf.data.Dataset:
        """Decodes, batches and augments a dataset of records and random numbers."""
        size = batches.image_size

        def example(record: Any, random: Any) -> Any:
            file, number, content = record
            encoded, label = parse(content, self.image_key, self.label_key)
            return decode(encoded, random), label, file, number, random

        def batch(images: Any, labels: Any, files: Any, numbers: Any, random: Any):
            # A static shape, which Keras needs to build a model.
            images = tf.ensure_shape(images, (None, size, size, 3))
            images = (images - tf.constant(batches.mean)) / tf.constant(batches.std)
            labels = self._checked_labels(labels, files, numbers)
            if batches.one_hot:
                labels = tf.one_hot(labels, self.classes)
            return augment(images, random), labels

        # Whole batches are augmented: a call for each image would cost more than the
        # work.
        dataset = (
            records.map(example, tf.data.AUTOTUNE, deterministic=True)
            .batch(batches.batch_size)
            .map(batch, tf.data.AUTOTUNE, deterministic=True)
        )
        steps = -(-share.records // batches.batch_size)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
        options = tf.data.Options()
        options.deterministic = True
        dataset = dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
        if strategy is None or strategy.num_replicas_in_sync == 1:
            return dataset
        return strategy.distribute_datasets_from_function(lambda _: dataset)

    def _checked_labels(
        self, stored: tf.Tensor, files: tf.Tensor, numbers: tf.Tensor
    ) -> tf.Tensor:
        """Returns labels from 0; the error for others names their record."""
        labels = stored - self.first_label
        wrong = (labels < 0) | (labels >= self.classes)
        first = tf.argmax(wrong)
        message = tf.strings.join(
            [
                describe_labels(
                    range(self.first_label, self.first_label + self.classes)
                ),
                ". Received: ",
                tf.as_string(stored[first]),
                " in record ",
                tf.as_string(numbers[first]),
                " (from 0) of ",
                tf.constant([str(path) for path in self.files])[files[first]],
                ". Pass other `classes` or `first_label`, or correct the file.",
            ]
        )
        check = tf.debugging.Assert(~tf.reduce_any(wrong), [message])
        with tf.control_dependencies([check]):
            return tf.cast(labels, tf.int32)

    def _leave_out_corrupt(self) -> None:
        found = examine(self.files, self.image_key, self.label_key)
        for number, file in enumerate(found):
            self._counts[number] = len(file.intact)
            if file.corrupt:
                self._intact[number] = file.intact
            for record in file.corrupt:
                warnings.warn(f"Leaving out {record}", stacklevel=3)
        if not any(self._counts.values()):
            raise ValueError(
                "At least one record must be intact. Received: only corrupt ones; the "
                f"first is {found[0].corrupt[0]}. Fetch the files again."
            )

    def _count(self, files: Sequence[int]) -> list[int]:
        """Returns the number of records in files, each of which is counted once."""
        new = [file for file in files if file not in self._counts]
        counts = in_threads(lambda file: count_records(self.files[file]), new)
        self._counts.update(zip(new, counts, strict=True))
        return [self._counts[file] for file in files]


class _Batches(NamedTuple):
    """Arguments of `for_training` and `for_evaluation`; once checked, for a replica."""

    batch_size: int
    image_size: int
    one_hot: bool
    mean: Sequence[float]
    std: Sequence[float]

    def checked(self, strategy: Any) -> "_Batches":
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        checked_integer("batch_size", self.batch_size, at_least=1)
        if self.batch_size % replicas:
            raise ValueError(
                "`batch_size` is the global batch, a multiple of the number of "
                f"replicas. Received: batch_size={self.batch_size:,}, {replicas} "
                "replicas. Pass, for example, "
                f"{multiples_near(self.batch_size, replicas)}."
            )
        return _Batches(
            self.batch_size // replicas,
            checked_integer("image_size", self.image_size, at_least=1),
            checked_bool("one_hot", self.one_hot),
            _checked_colour("mean", self.mean),
            _checked_colour("std", self.std, above=0.0),
        )


def _checked_colour(
    argument: str, value: Sequence[float], above: float | None = None
) -> tuple[float, ...]:
    """Returns three numbers, for red, green and blue."""
    if np.shape(value) != (3,):
        raise ValueError(
            f"`{argument}` must be three numbers, for red, green and blue. Received: "
            f"{argument}={value!r}. Pass, for example, ImageNet's: {IMAGENET_MEAN}."
        )
    return tuple(checked_number(argument, number, above=above) for number in value)
