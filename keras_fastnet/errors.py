"""Errors that keras_fastnet raises about the cluster and the data."""


class ClusterError(RuntimeError):
    """The cluster is described wrongly, incomplete or out of reach."""


class ShardingError(RuntimeError):
    """The workers do not hold the data that one global batch needs."""
