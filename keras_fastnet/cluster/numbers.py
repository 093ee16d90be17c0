"""Numbers in environment variables."""

from collections.abc import Mapping

from keras_fastnet.errors import ClusterError


def number_in(
    environment: Mapping[str, str], name: str, least: int, most: int, example: int
) -> int | None:
    """Returns the number in a variable that a person sets; `None` where it is absent.

    Args:
        environment: The environment variables.
        name: The variable.
        least: The smallest number that it may have.
        most: The largest.
        example: A number for the error's text.

    Raises:
        ClusterError: It has something else.
    """
    text = environment.get(name)
    if text is None:
        return None
    # `isdigit` knows digits that `int` does not.
    number = int(text) if text.isdecimal() and len(text) < 10 else -1
    if not least <= number <= most:
        raise ClusterError(
            f"{name} must be an integer from {least} to {most}. Received: {text!r}. "
            f"Set it on all workers, for example {name}={example}, or unset it."
        )
    return number
