"""Errors about the cluster, the data and the command line."""


class ClusterError(RuntimeError):
    """The cluster's description is wrong, or workers are missing or unreachable."""


class ShardingError(RuntimeError):
    """The workers do not have the data that a global batch needs."""


class MismatchError(RuntimeError):
    """The workers differ in what must be equal: calls, models, settings or weights.

    All workers raise it. The message names what differs, and the value on each rank.
    """


class UsageError(ValueError):
    """An option or argument of a command is invalid.

    The message states the rule, what was received and what to do. `fastnet`
    prints it on stderr without a traceback and exits with code 2.
    """
