"""A metaclass: one instance in a process, which a second call returns."""

import inspect
from typing import Any

import tensorflow as tf

# It has no effect once the workers are connected.
_OF_THE_START = "start_timeout"


class OnePerProcess(type):
    """Metaclass of a strategy of which a process can have only one.

    A cluster can be formed only once, and cells of a notebook run again. A call with
    the same arguments as the first returns its instance. If the first call raised, the
    next one is the first.
    """

    _made: tuple[Any, dict[str, Any]] | None

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]):
        super().__init__(name, bases, namespace)
        # Not inherited: another class is another strategy.
        cls._made = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the strategy, which the first call makes.

        Raises:
            ValueError: If it was made with other arguments.
        """
        if cls._made is None:
            made = super().__call__(*args, **kwargs)
            cls._made = made, cls._arguments(made, args, kwargs)
            return made
        first, before = cls._made
        now = cls._arguments(first, args, kwargs)
        differ = [
            f"{name}={now.get(name)!r}, at first {before.get(name)!r}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        if differ:
            raise ValueError(
                f"A process has one `{cls.__name__}`, and a second call must have the "
                f"arguments of the first. Received: {'; '.join(differ)}. Keep the "
                "first strategy in a variable, or pass the same arguments; for others "
                "start the program, or the notebook's kernel, again."
            )
        first.check_unchanged()
        return first

    def _arguments(cls, made: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        bound = inspect.signature(type(made).__init__).bind(made, *args, **kwargs)
        bound.apply_defaults()
        _, *arguments = bound.arguments.items()
        return {
            name: _described(value)
            for name, value in arguments
            if name != _OF_THE_START
        }


def _described(argument: Any) -> Any:
    """Returns an argument in a form that is compared by value."""
    if isinstance(argument, tf.distribute.cluster_resolver.ClusterResolver):
        cluster = argument.cluster_spec().as_dict()
        return {**cluster, "task": (argument.task_type, argument.task_id)}
    # `tf.distribute.experimental.CommunicationOptions` makes one of another class.
    if hasattr(argument, "bytes_per_pack"):
        return vars(argument)
    return argument
