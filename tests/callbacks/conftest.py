"""A strategy of the process, which `LargeBatchOptimizer` needs on one device too."""

import pytest

import keras_fastnet


@pytest.fixture(scope="session", autouse=True)
def one_replica():
    """Makes the strategy, outside of whose scope models may train on one device."""
    return keras_fastnet.TorusStrategy()
