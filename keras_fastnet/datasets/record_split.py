"""One split of a labelled dataset in TFRecord files."""

import contextlib
import glob
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_fastnet.arguments import checked_integer
from keras_fastnet.datasets.arguments import check_choice
from keras_fastnet.datasets.batches import LABEL_HINT, label_rule
from keras_fastnet.datasets.corruption import CorruptRecord, examine
from keras_fastnet.datasets.record_files import (
    RecordSpan,
    count_records,
    in_threads,
    no_record_file,
    read_first,
)
from keras_fastnet.datasets.sharding import Share, describe, share_of
from keras_fastnet.text import count

_LABELS_FILE = "labels.txt"


class RecordSplit:
    """The files of one split: checked, counted and shared among workers.

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
        self._intact: dict[int, list[RecordSpan]] = {}
        in_threads(lambda path: self._check_first(path, corrupt == "fail"), self.files)
        if corrupt == "skip":
            self._leave_out_corrupt()
            examples = None
        everything = range(len(self.files))
        self.examples = examples or sum(self._records_of(everything))

    def describe(self, num_workers: int = 1) -> str:
        """Returns a line that describes the split and the share of each worker.

        Args:
            num_workers: Number of workers. Defaults to `1`.
        """
        checked_integer("num_workers", num_workers, at_least=1)
        return (
            f"{self.split}: {self.examples:,} examples of {self.classes:,} classes in "
            f"{count(len(self.files), 'file')} in {self.data_dir}; "
            f"{describe(len(self.files), num_workers)}"
        )

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

    @contextlib.contextmanager
    def naming_corrupt(self) -> Iterator[None]:
        """Names the corrupt records if a training within the context fails at one.

        TensorFlow's own errors name neither file nor record. Finding the records takes
        as long as reading and decoding the whole split.

        Raises:
            ValueError: If there are corrupt records, or a label was out of range. Other
                errors pass unchanged.
        """
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            rule = label_rule(self.first_label, self.classes)
            if rule in str(error):
                # TensorFlow's message contains ours, which names the record.
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
        """Returns one worker's share of the records.

        Args:
            num_workers: Number of workers.
            rank: The worker's rank.
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
                "At least one record must be intact. Received: only corrupt ones; the "
                f"first is {found[0].corrupt[0]}. Fetch the files again."
            )

    def _records_of(self, files: Sequence[int]) -> list[int]:
        """Returns the number of records in files, each of which is counted once."""
        new = [file for file in files if file not in self._counts]
        counts = in_threads(lambda file: count_records(self.files[file]), new)
        self._counts.update(zip(new, counts, strict=True))
        return [self._counts[file] for file in files]


def find_files(data_dir: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the files of a split, sorted by name.

    Args:
        data_dir: Their folder.
        split: The prefix of their names, which are `<split>-*`.

    Raises:
        FileNotFoundError: If there is no such folder, or no such file in it.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(
            f"`data_dir` must be a folder. Received: {data_dir}, which is "
            f"{'a file' if data_dir.exists() else 'not there'}. Pass the folder that "
            f"holds the files `{split}-*`."
        )
    pattern = f"{glob.escape(split)}-*"
    files = sorted(path for path in data_dir.glob(pattern) if path.is_file())
    if not files:
        names = sorted(path.name for path in data_dir.iterdir())
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise FileNotFoundError(
            f"The files of a split must be called `<split>-*`. Received: no "
            f"`{split}-*` in {data_dir}, which holds {shown or 'nothing'}. Pass "
            "another `split` or `data_dir`."
        )
    return files


def check_classes(data_dir: pathlib.Path, classes: int | None) -> int:
    """Returns the number of classes, checked against labels.txt.

    Args:
        data_dir: The folder that may hold labels.txt.
        classes: The number that the user passed; `None` for that of labels.txt.

    Raises:
        ValueError: If labels.txt has another number of lines, or neither states it.
    """
    path = data_dir / _LABELS_FILE
    if not path.is_file():
        if classes is None:
            raise ValueError(
                "The number of classes must be stated. Received: classes=None, and no "
                f"{path}. Pass `classes=...`."
            )
        return classes
    lines = path.read_text(encoding="utf-8").splitlines()
    named = sum(bool(line.strip()) for line in lines)
    if classes not in (None, named):
        raise ValueError(
            "`classes` must be the number of lines in labels.txt. Received: classes="
            f"{classes:,}, and {named:,} lines in {path}. Pass `classes={named}` (with "
            "`first_label=0` if the first line is a background class), or correct the "
            "file."
        )
    if not named:
        raise ValueError(
            f"labels.txt must have a line for every class. Received: {path}, which is "
            "empty. Correct or remove it."
        )
    return named


def check_first_record(
    path: pathlib.Path,
    image_key: str,
    label_key: str,
    first_label: int,
    classes: int,
    *,
    must_parse: bool,
) -> None:
    """Checks the features of a file's first record.

    Args:
        path: The file.
        image_key: The feature that must hold one string.
        label_key: The feature that must hold one integer.
        first_label: The smallest label.
        classes: Number of labels.
        must_parse: Whether to raise for a record that cannot be read; otherwise it is
            not checked.

    Raises:
        ValueError: If a feature is missing or of another type, the label is out of
            range, or there is no record.
    """
    record = read_first(path)
    if record is None:
        if must_parse:
            raise no_record_file(path)
        return
    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        if must_parse:
            raise ValueError(
                "Every record must be a serialized `tf.train.Example`. Received: "
                f"{path}, whose first record is something else ({error}). Fetch or "
                'write the file again, or pass `corrupt="skip"` to do without such '
                "records."
            ) from error
        return
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    for argument, name, kind in (
        ("image_key", image_key, "bytes_list"),
        ("label_key", label_key, "int64_list"),
    ):
        if kinds.get(name) != kind or len(getattr(features[name], kind).value) != 1:
            there = ", ".join(f"{n} ({k})" for n, k in sorted(kinds.items()))
            raise ValueError(
                f"Every record must have a feature `{name}` with one value in a {kind}."
                f" Received: {path}, whose first record has {there or 'no features'}. "
                f"Pass the name that these files use as `{argument}=...`."
            )
    label = features[label_key].int64_list.value[0]
    if not first_label <= label < first_label + classes:
        raise ValueError(
            f"{label_rule(first_label, classes)}. Received: {label} in the first "
            f"record of {path}. The class counts disagree: pass another `classes`, or "
            "`first_label=0` for labels that count from 0."
        )
