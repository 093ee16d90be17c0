"""One split of a labelled dataset in TFRecord files."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import tensorflow as tf

from keras_fastnet.arguments import checked_integer
from keras_fastnet.datasets.arguments import check_choice
from keras_fastnet.datasets.batches import LABEL_HINT
from keras_fastnet.datasets.checks import (
    check_classes,
    check_first_record,
    find_files,
    label_rule,
)
from keras_fastnet.datasets.corruption import CorruptRecord, examine
from keras_fastnet.datasets.record_files import Place, count_records, in_threads
from keras_fastnet.datasets.sharding import Share, describe, share_of


class RecordSplit:
    """The files of one split: checked, counted, shared out.

    See `ImageRecords` for the arguments.
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
        check_choice("corrupt", corrupt, ("fail", "skip"))
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
        self._counts: dict[int, int] = {}
        self._intact: dict[int, list[Place]] = {}
        in_threads(lambda path: self._check_first(path, corrupt == "fail"), self.files)
        if corrupt == "skip":
            self._leave_out_corrupt()
            examples = None
        everything = range(len(self.files))
        self.examples = examples or sum(self._records_of(everything))

    def describe(self, num_workers: int = 1) -> str:
        """Says in one line what there is, and what each worker reads of it.

        Args:
            num_workers: How many workers there are. Defaults to `1`.
        """
        checked_integer("num_workers", num_workers, at_least=1)
        return (
            f"{self.split}: {self.examples:,} examples of {self.classes:,} classes in "
            f"{len(self.files):,} file(s) of {self.data_dir}; "
            f"{describe(len(self.files), num_workers)}"
        )

    def find_corrupt(self) -> list[CorruptRecord]:
        """Reads and decodes all records, and returns those that are corrupt.

        A record is corrupt where its checksum is wrong, where it lacks a feature, or
        where its image cannot be decoded. Where a record's length is damaged or the
        file ends, what follows cannot be found: that is one entry, the last of the
        file.

        Returns:
            Tuples of `file`, `record` (from 0) and `reason`.
        """
        found = examine(self.files, self.image_key, self.label_key)
        return [record for file in found for record in file.corrupt]

    @contextlib.contextmanager
    def naming_corrupt(self) -> Iterator[None]:
        """Names the corrupt records when a training within it stops at one.

        TensorFlow's own errors name neither file nor record. Looking for them takes as
        long as reading and decoding the whole split.

        Raises:
            ValueError: There are corrupt records, or a label was out of range. Other
                errors pass unchanged.
        """
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            rule = label_rule(self.first_label, self.classes)
            if rule in str(error):
                # It names its record, somewhere within a long message.
                rest = str(error).split(rule, 1)[1].split(LABEL_HINT)[0]
                raise ValueError(rule + rest + LABEL_HINT) from error
            found = self.find_corrupt()
            if not found:
                raise
            lines = "\n".join(f"  {record}" for record in found)
            raise ValueError(
                "Records must be whole, and their images decodable. Received, in "
                f"{self.split}:\n{lines}\nFetch or write these files again, or pass "
                '`corrupt="skip"` to do without these records.'
            ) from error

    def share(self, num_workers: int, rank: int) -> Share:
        """Returns what one worker reads.

        Args:
            num_workers: How many workers there are.
            rank: The worker.
        """
        if num_workers == 1:
            everything = range(len(self.files))
            return Share(everything, [0] * len(everything), 1, self.examples)
        return share_of(rank, num_workers, len(self.files), self._records_of)

    def _check_first(self, path: pathlib.Path, must_parse: bool) -> None:
        check_first_record(
            path,
            self.image_key,
            self.label_key,
            self.first_label,
            self.classes,
            must_parse=must_parse,
        )

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
                "A record must be left to train with. Received: only corrupt ones, of "
                f"which the first is {found[0].corrupt[0]}. Fetch the files again."
            )

    def _records_of(self, files: Sequence[int]) -> list[int]:
        """Returns the number of records in files, each of which is counted once."""
        new = [file for file in files if file not in self._counts]
        counts = in_threads(lambda file: count_records(self.files[file]), new)
        self._counts.update(zip(new, counts, strict=True))
        return [self._counts[file] for file in files]
