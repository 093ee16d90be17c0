"""Datasets on disk, for training and evaluation."""

from keras_fastnet.datasets.corruption import CorruptRecord
from keras_fastnet.datasets.image_records import ImageRecords

__all__ = ["CorruptRecord", "ImageRecords"]
