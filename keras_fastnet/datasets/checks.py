"""What can be known to be wrong before a training begins."""

import glob
import pathlib

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_fastnet.datasets.record_files import no_record_file, read_first

_LABELS_FILE = "labels.txt"


def find_files(data_dir: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the files of a split, in the order of their names.

    Args:
        data_dir: Their folder.
        split: The files are called `<split>-*`.

    Raises:
        FileNotFoundError: There is no such folder, or there are no such files in it.
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
    """Returns the number of classes, if it is the number of lines in labels.txt.

    Args:
        data_dir: Where labels.txt may be.
        classes: What the user gave; `None` for what labels.txt says.

    Raises:
        ValueError: It is another number, or nothing tells it.
    """
    path = data_dir / _LABELS_FILE
    if not path.is_file():
        if classes is None:
            raise ValueError(
                "The number of classes must be known. Received: classes=None, and no "
                f"{path}. Pass `classes=...`."
            )
        return classes
    lines = path.read_text(encoding="utf-8").splitlines()
    named = sum(bool(line.strip()) for line in lines)
    if classes not in (None, named):
        raise ValueError(
            "There must be as many classes as lines in labels.txt. Received: classes="
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
        classes: How many labels there are.
        must_parse: Whether to refuse a record that cannot be read; else nothing is
            checked about it.

    Raises:
        ValueError: A feature is missing or of another type, the label is out of
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


def label_rule(first_label: int, classes: int) -> str:
    """Returns the beginning of the errors about labels.

    Args:
        first_label: The smallest label.
        classes: How many there are.
    """
    return (
        f"With classes={classes} and first_label={first_label}, labels must be from "
        f"{first_label} to {first_label + classes - 1}"
    )
