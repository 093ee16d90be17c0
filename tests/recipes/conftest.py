"""A strategy of the process, which `LargeBatchOptimizer` needs on one device too."""

from tests.callbacks.conftest import one_replica  # noqa: F401
