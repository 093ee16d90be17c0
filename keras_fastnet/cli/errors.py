"""What every `fastnet` command raises for input that it refuses."""


class UsageError(ValueError):
    """The user asked for something that cannot be done.

    The message states the rule, what was received and what to do. `fastnet`
    prints it on stderr without a traceback and exits with code 2.
    """


def check_integer(option: str, value: object, minimum: int, example: int = 2) -> None:
    """Refuses what is no integer of at least `minimum`.

    Args:
        option: Whose value it is.
        value: What the user gave.
        minimum: The smallest that is allowed.
        example: A value to propose. Defaults to `2`.

    Raises:
        UsageError: It is refused.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise UsageError(
            f"{option} must be an integer >= {minimum}. Received: {value}. "
            f"Pass, for example, `{option} {example}`."
        )
