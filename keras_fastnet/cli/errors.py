"""`UsageError`, which every `fastnet` command raises for input it refuses."""


class UsageError(ValueError):
    """The user asked for something that cannot be done.

    The message states the rule, what was received and what to do. `fastnet`
    prints it on stderr without a traceback and exits with code 2.
    """
