"""Datasets on disk, for training and evaluation."""

from keras_fastnet.datasets.image_records import ImageRecords

__all__ = ["ImageRecords"]
