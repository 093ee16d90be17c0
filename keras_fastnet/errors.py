"""Errors that keras_fastnet raises about the cluster, the data and the command line."""


class ClusterError(RuntimeError):
    """The cluster is described wrongly, incomplete or out of reach."""


class ShardingError(RuntimeError):
    """The workers do not hold the data that one global batch needs."""


class UsageError(ValueError):
    """The user asked for something that cannot be done.

    The message states the rule, what was received and what to do. `fastnet`
    prints it on stderr without a traceback and exits with code 2.
    """
