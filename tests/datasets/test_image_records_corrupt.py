"""Corrupt TFRecord files: errors, names and omitted records."""

import gzip

import pytest
import tensorflow as tf

from keras_fastnet.datasets import ImageRecords
from keras_fastnet.datasets.record_files import find_spans
from tests.image_record_files import Worker, example, plain, write, write_split

COUNTS = [6, 5, 7]


def files_of(folder):
    return sorted(folder.glob("train-*"))


def change(path, position, byte=0xFF):
    content = bytearray(path.read_bytes())
    content[position] ^= byte
    path.write_bytes(content)


def damaged_checksum(path):
    """Damages a pixel of record 2."""
    change(path, find_spans(path).spans[2].offset + 300)
    return [(2, "checksum")]


def damaged_checksums(path):
    """Damages records 0 and 3; record 0 can still be parsed."""
    for record in (0, 3):
        span = find_spans(path).spans[record]
        change(path, span.offset + span.length // 2)
    return [(0, "checksum"), (3, "checksum")]


def damaged_length(path):
    change(path, find_spans(path).spans[3].offset - 12)
    return [(3, "nothing after it can be read")]


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-7])
    return [(4, "file ends within it")]


def damaged_jpeg(path):
    """Replaces the image of record 1, with a correct checksum."""
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    broken = b"\xff\xd8\xff" + bytes(100)
    write(path, [records[0], example(broken, 2), *records[2:]])
    return [(1, "")]


def no_image(path):
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    write(path, [*records[:3], example(b"an apple", 1), b"no example"])
    return [(3, "Unknown image"), (4, "parse")]


def no_label(path):
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    write(path, [*records[:4], example(plain(1), 1, label_key="other")])
    return [(4, "image/class/label")]


DAMAGES = [
    damaged_checksum,
    damaged_checksums,
    damaged_length,
    cut_off,
    damaged_jpeg,
    no_image,
    no_label,
]


def labels_of(dataset):
    return [int(label) for _, labels in dataset for label in labels.numpy()]


@pytest.mark.filterwarnings("ignore:Leaving out")
@pytest.mark.parametrize(
    ("damage", "num_workers"),
    [*((damage, 1) for damage in DAMAGES), (damaged_checksums, 2), (cut_off, 3)],
)
def test_corrupt_records_are_omitted(tmp_path, damage, num_workers):
    path = files_of(write_split(tmp_path, COUNTS))[1]
    found = damage(path)
    records = ImageRecords(tmp_path, "train", sum(COUNTS), corrupt="skip")
    # The second file's labels are 7 to 11, as stored labels start at 1.
    lost = {record for record, _ in found}
    if damage is damaged_length:
        lost = {3, 4}
    kept = [n for n in range(18) if not (6 <= n < 11 and n - 6 in lost)]
    assert len(kept) == 18 - len(lost)
    assert records.examples == len(kept)
    for training in (True, False):
        seen, batches = [], 0
        for rank in range(num_workers):
            make = records.for_training if training else records.for_evaluation
            dataset = make(6, 16, strategy=Worker(num_workers, rank))
            seen += labels_of(dataset)
            batches += int(dataset.cardinality())
        assert sorted(seen) == kept
    if num_workers == 1:
        assert seen == kept
        assert batches == -(-len(kept) // 6)


@pytest.mark.parametrize("damage", DAMAGES)
def test_corrupt_records_are_found(tmp_path, damage):
    path = files_of(write_split(tmp_path, COUNTS))[1]
    # The files are damaged after the training began.
    records = ImageRecords(tmp_path, "train", sum(COUNTS))
    assert records.find_corrupt() == []
    expected = damage(path)
    found = records.find_corrupt()
    assert [(record.file, record.record) for record in found] == [
        (path, number) for number, _ in expected
    ]
    for record, (_, reason) in zip(found, expected, strict=True):
        assert record.reason and reason in record.reason
        assert str(record).startswith(f"record {record.record} of {path}: ")
    with pytest.warns(UserWarning, match="Leaving out record") as caught:
        ImageRecords(tmp_path, "train", sum(COUNTS), corrupt="skip")
    texts = [str(warning.message) for warning in caught]
    assert texts == [f"Leaving out {record}" for record in found]
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "record 4 (from 0): the file ends within it. Fetch"),
        (damaged_length, "record 3 (from 0): the header of the next record is damaged"),
        (lambda path: path.write_bytes(b""), "which is empty"),
        (lambda path: path.write_bytes(bytes(500)), "does not start with a whole rec"),
        (
            lambda path: path.write_bytes(gzip.compress(path.read_bytes())),
            "unpack it if it is compressed",
        ),
        (lambda path: write(path, [b"no example"]), "whose first record is something"),
    ],
)
def test_damaged_files_raise_before_training(tmp_path, damage, words):
    path = files_of(write_split(tmp_path, COUNTS))[1]
    damage(path)
    with pytest.raises(ValueError, match="Received") as refusal:
        ImageRecords(tmp_path, "train", 18)
    assert str(path) in str(refusal.value)
    assert words in str(refusal.value)


def test_files_without_a_record_are_omitted(tmp_path):
    content = bytes(500)
    path = files_of(write_split(tmp_path, COUNTS))[1]
    path.write_bytes(content)
    # It raises even if records are not counted.
    with pytest.raises(ValueError, match="must be a TFRecord file"):
        ImageRecords(tmp_path, "train", 18, examples=18)
    with pytest.warns(UserWarning, match=f"Leaving out record 0 of {path}"):
        records = ImageRecords(tmp_path, "train", 18, corrupt="skip")
    kept = [n for n in range(18) if not 6 <= n < 11]
    assert labels_of(records.for_evaluation(4, 16)) == kept
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="only corrupt"):
        for other in files_of(tmp_path):
            other.write_bytes(content)
        ImageRecords(tmp_path, "train", 18, corrupt="skip")
