"""`PyDataset`s: a queue for each iterator."""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from keras.src.trainers.data_adapters import py_dataset_adapter


# Keras prepares the batches of a `PyDataset` with `workers` in one queue for all
# iterators: what one of them leaves there, such as the one that only looks at the first
# batch, the next one gets in addition to its own.
def separate_iterators(adapter: Any) -> None:
    """Gives each iterator over a `PyDataset` a queue of its own.

    With one for all of them some batches come twice, others never.

    Args:
        adapter: The `PyDatasetAdapter`.
    """
    adapter.enqueuer = None
    adapter._fastnet_first_only = False
    adapter._get_iterator = functools.partial(
        _separate_iterator, type(adapter)._get_iterator, adapter
    )


def _separate_iterator(original, adapter):
    dataset = adapter.py_dataset
    if adapter._fastnet_first_only:
        return iter([adapter._standardize_batch(dataset[0])])
    if not _in_parallel(dataset):
        return original(adapter)
    return map(
        adapter._standardize_batch, _prepared_in_parallel(dataset, adapter.shuffle)
    )


def _in_parallel(dataset: Any) -> bool:
    return dataset.workers > (0 if dataset.use_multiprocessing else 1)


def _prepared_in_parallel(dataset: Any, shuffle: bool) -> Iterator[Any]:
    enqueuer = py_dataset_adapter.OrderedEnqueuer(
        dataset,
        workers=dataset.workers,
        use_multiprocessing=dataset.use_multiprocessing,
        max_queue_size=dataset.max_queue_size,
        shuffle=shuffle,
    )
    enqueuer.start()
    try:
        yield from itertools.islice(enqueuer.get(), dataset.num_batches)
    finally:
        enqueuer.stop()


# A look at the first batch must not begin an epoch: `on_epoch_end`, which Keras also
# calls before the first epoch, and `on_epoch_begin` may still give it another order.
@contextlib.contextmanager
def first_only(adapter: Any) -> Iterator[None]:
    """Has iterators that begin in this context yield the first batch only.

    Args:
        adapter: The `PyDatasetAdapter`, after `separate_iterators`.
    """
    adapter._fastnet_first_only = True
    try:
        yield
    finally:
        adapter._fastnet_first_only = False
