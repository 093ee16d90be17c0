"""Checks of a split before training: the first record of a file, and labels.txt."""

import pathlib

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_fastnet.datasets.record_files import no_record_file, read_first

_LABELS_FILE = "labels.txt"


def check_classes(data_dir: pathlib.Path, classes: int | None) -> int:
    """Returns the number of classes, checked against labels.txt.

    Args:
        data_dir: The folder that may hold labels.txt.
        classes: The number that the user passed; `None` for that of labels.txt.

    Raises:
        ValueError: If labels.txt has another number of lines, or neither states it.
    """
    path = data_dir / _LABELS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    named = sum(bool(line.strip()) for line in lines)
    if not named and classes is None:
        raise ValueError(
            "The number of classes must be stated. Received: classes=None, and no "
            f"lines in {path}. Pass `classes=...`."
        )
    if named and classes not in (None, named):
        raise ValueError(
            "`classes` must be the number of lines in labels.txt. Received: classes="
            f"{classes:,}, and {named:,} lines in {path}. Pass `classes={named}` (with "
            "`first_label=0` if the first line is a background class), or correct the "
            "file."
        )
    return classes or named


def describe_labels(labels: range) -> str:
    """Returns the first words of errors about labels."""
    return (
        f"With classes={len(labels)} and first_label={labels.start}, labels must be "
        f"from {labels.start} to {labels.stop - 1}"
    )


def check_first_record(
    path: pathlib.Path, keys: tuple[str, str], labels: range, must_parse: bool
) -> None:
    """Checks the features of a file's first record.

    Args:
        path: The file.
        keys: The feature that must hold one string, and that which must hold one
            integer.
        labels: The labels that there may be.
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
    for argument, name, kind in zip(
        ("image_key", "label_key"), keys, ("bytes_list", "int64_list"), strict=True
    ):
        if kinds.get(name) != kind or len(getattr(features[name], kind).value) != 1:
            there = ", ".join(f"{n} ({k})" for n, k in sorted(kinds.items()))
            raise ValueError(
                f"Every record must have a feature `{name}` with one value in a {kind}."
                f" Received: {path}, whose first record has {there or 'no features'}. "
                f"Pass the name that these files use as `{argument}=...`."
            )
    label = features[keys[1]].int64_list.value[0]
    if label not in labels:
        raise ValueError(
            f"{describe_labels(labels)}. Received: {label} in the first record of "
            f"{path}. The class counts disagree: pass another `classes`, or "
            "`first_label=0` for labels that count from 0."
        )
