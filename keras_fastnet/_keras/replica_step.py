"""What one replica knows while it runs one step."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf


class ReplicaStep(threading.local):
    """The step that this thread's replica is tracing or running.

    TensorFlow runs each replica's function in a thread of its own.

    Attributes:
        share: The replica's part of the global batch's examples, `n_r / n`, a
            scalar `float64` tensor; `None` outside Keras's steps.
        own: Number of the replica's own examples, a scalar `int64` tensor; `None`
            outside Keras's steps.
        examples: Number of examples in the whole global batch, a scalar `int64` tensor;
            `None` outside Keras's steps.
        reduced: Whether the optimizer is being given sums over all replicas.
        compiled: Whether XLA compiles what stands between the collectives.
        totals: Sums variables of a metric over all replicas; `None` where metrics
            return the replica's own results.
        continues: Whether more examples of the same batch follow in a step after this
            one.
    """

    share: tf.Tensor | None = None
    own: tf.Tensor | None = None
    examples: tf.Tensor | None = None
    reduced: bool = False
    compiled: bool = False
    totals: Callable[[list[Any]], list[tf.Tensor]] | None = None
    continues: bool = False

    @contextlib.contextmanager
    def of_batch(self, own: Any, total: Any, compiled: bool) -> Iterator[None]:
        """Sets the share for the time of a step.

        Args:
            own: The replica's number of examples.
            total: The global batch's.
            compiled: Whether XLA compiles the step's parts.
        """
        self.share = tf.cast(own, tf.float64) / tf.cast(total, tf.float64)
        self.own = own
        self.examples = total
        self.compiled = compiled
        try:
            yield
        finally:
            self.share = self.own = self.examples = None
            self.compiled = False

    def to_be_continued(self) -> AbstractContextManager[None]:
        """Marks that the next step has the rest of the batch."""
        return self._marked("continues", True)

    def within_compiled(self) -> AbstractContextManager[None]:
        """Marks that XLA compiles already what runs in this context."""
        return self._marked("compiled", False)

    def with_reduced_gradients(self) -> AbstractContextManager[None]:
        """Marks that the gradients are sums over all replicas by now."""
        return self._marked("reduced", True)

    def with_results_of_all(
        self, totals: Callable[[list[Any]], list[tf.Tensor]]
    ) -> AbstractContextManager[None]:
        """Has metrics return their results over all replicas.

        Args:
            totals: Sums variables of a metric over all replicas.
        """
        return self._marked("totals", totals)

    @contextlib.contextmanager
    def _marked(self, name: str, value: Any) -> Iterator[None]:
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, before)

    def weigh(self, value: Any) -> Any:
        """Returns the replica's term of the sum that is the mean over all examples.

        Args:
            value: A mean over the replica's own examples, or a gradient of one, dense
                or sparse; anything, even NaN, where it has none.

        Returns:
            `share * value`, and 0 where the replica has no example.
        """
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.weigh(value.values), value.indices, value.dense_shape
            )
        return tf.math.multiply_no_nan(value, tf.cast(self.share, value.dtype))

    def unweigh(self, value: tf.Tensor) -> tf.Tensor:
        """Inverts `weigh`; 0 where the replica has no example.

        Args:
            value: A sum over the replica's own examples, or its part of something that
                all replicas' parts add up to.

        Returns:
            The mean over examples that stands for it in a step: `value / share`.
        """
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))
