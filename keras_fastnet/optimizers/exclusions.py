"""Variables that LARS excludes from weight decay and adaptation."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.arguments import checked_bool
from keras_fastnet.optimizers.biases_and_norms import biases_and_norms
from keras_fastnet.optimizers.treatment import Treatment

Exclusion: TypeAlias = Sequence[str] | Callable[[Any], bool] | None


class Exclusions:
    """Exclusions of one LARS optimizer, and the treatments that follow from them.

    Args:
        exclude_biases_and_norms: As for `LARS`.
        exclude_from_weight_decay: As for `LARS`.
        exclude_from_adaptation: As for `LARS`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a pattern is not a regular expression.
    """

    def __init__(
        self,
        exclude_biases_and_norms: bool,
        exclude_from_weight_decay: Exclusion,
        exclude_from_adaptation: Exclusion,
    ):
        self._by_default = checked_bool(
            "exclude_biases_and_norms", exclude_biases_and_norms
        )
        self._by_user = {
            argument: checked_exclusion(argument, value)
            for argument, value in (
                ("exclude_from_weight_decay", exclude_from_weight_decay),
                ("exclude_from_adaptation", exclude_from_adaptation),
            )
        }
        # Treatments from `build`, or from the saved optimizer that this one copies.
        self._decided: list[Treatment] = []

    def decide(self, variables: Sequence[Any]) -> list[Treatment]:
        """Returns one treatment for each variable, without keeping them.

        Args:
            variables: Keras or TensorFlow variables.

        Raises:
            ValueError: If a pattern matches none of the variables.
        """
        return recalled(self._decided, variables) or treatments(
            variables, exclude_biases_and_norms=self._by_default, **self._by_user
        )

    def keep(self, decided: Sequence[Treatment]) -> None:
        """Keeps treatments, so that they are saved.

        Args:
            decided: Results of `decide`.
        """
        self._decided = list(decided)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, and the treatments that were kept.

        Raises:
            ValueError: If a predicate is not registered with Keras.
        """
        arguments = {
            "exclude_biases_and_norms": self._by_default,
            **{
                argument: serialized_exclusion(argument, value)
                for argument, value in self._by_user.items()
            },
        }
        if not self._decided:
            return arguments
        decided = [treatment.get_config() for treatment in self._decided]
        return {
            **arguments,
            "treatments": {"decided_by": arguments, "of_each_variable": decided},
        }

    @staticmethod
    def from_config(
        config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> tuple[dict[str, Any], list[Treatment]]:
        """Reads a configuration of LARS.

        Args:
            config: A result of `LARS.get_config`.
            custom_objects: Objects by name, if they are not registered with Keras.

        Returns:
            The configuration as arguments of `LARS`, and the treatments to keep: none
                if the exclusions have been edited since.
        """
        config = dict(config)
        saved = config.pop("treatments", None)
        decided = []
        if saved and all(config.get(k) == v for k, v in saved["decided_by"].items()):
            decided = [Treatment.from_config(t) for t in saved["of_each_variable"]]
        for argument in ("exclude_from_weight_decay", "exclude_from_adaptation"):
            if isinstance(config.get(argument), dict):
                config[argument] = keras.saving.deserialize_keras_object(
                    config[argument], custom_objects=custom_objects
                )
        return config, decided


def checked_exclusion(argument: str, value: Exclusion) -> Exclusion:
    """Returns validated patterns or a validated predicate.

    Args:
        argument: The argument's name, for the error message.
        value: The value that the user passed.

    Returns:
        A tuple of patterns, the predicate, or `None`.

    Raises:
        TypeError: If `value` is neither patterns nor a predicate nor `None`.
        ValueError: If a pattern is not a regular expression.
    """
    if value is None or callable(value):
        return value
    if isinstance(value, str) or not (
        isinstance(value, Sequence) and all(isinstance(item, str) for item in value)
    ):
        raise TypeError(
            f"`{argument}` must be a list of regular expressions, a function from a "
            f"variable to a bool, or None. Received: {argument}={value!r}. "
            "Put a single pattern into a list."
        )
    for pattern in value:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{argument}` must hold valid regular expressions. "
                f"Received: {pattern!r} ({error}). "
                "Escape special characters, for example with `re.escape`."
            ) from error
    return tuple(value) or None


def treatments(
    variables: Sequence[Any],
    *,
    exclude_biases_and_norms: bool,
    exclude_from_weight_decay: Exclusion,
    exclude_from_adaptation: Exclusion,
) -> list[Treatment]:
    """Returns the treatment of each variable.

    Args:
        variables: Keras or TensorFlow variables.
        exclude_biases_and_norms: Whether tensors of rank 0 and 1, biases and variables
            of normalization layers are excluded from both weight decay and adaptation.
        exclude_from_weight_decay: Further exclusions: patterns or a predicate.
        exclude_from_adaptation: Further exclusions: patterns or a predicate.

    Returns:
        One treatment for each variable, in order.

    Raises:
        ValueError: If a pattern matches none of the variables.
    """
    by_default = (
        _default_reasons(variables)
        if exclude_biases_and_norms
        else [""] * len(variables)
    )
    from_decay = _user_reasons(
        variables, "exclude_from_weight_decay", exclude_from_weight_decay
    )
    from_adaptation = _user_reasons(
        variables, "exclude_from_adaptation", exclude_from_adaptation
    )
    return [
        Treatment(
            path=values.path(variable),
            shape=tuple(variable.shape),
            decayed=not (default or decay),
            adapted=not (default or adaptation),
            reason="; ".join(filter(None, (default, decay, adaptation))),
        )
        for variable, default, decay, adaptation in zip(
            variables, by_default, from_decay, from_adaptation, strict=True
        )
    ]


def recalled(
    saved: Sequence[Treatment], variables: Sequence[Any]
) -> list[Treatment] | None:
    """Returns the treatments of a saved optimizer, for the loaded variables.

    Keras changes paths on loading: `sequential/stem/kernel` in the saved model is
    `stem/kernel` in the loaded one. Treatments are therefore matched by position, and
    patterns are not searched again.

    Args:
        saved: The treatments that were saved.
        variables: The variables of the loaded model.

    Returns:
        One treatment for each variable, or `None` if the shapes differ, so that these
        are other variables.
    """
    if [t.shape for t in saved] != [tuple(v.shape) for v in variables]:
        return None
    return [
        replace(treatment, path=values.path(variable))
        for treatment, variable in zip(saved, variables, strict=True)
    ]


def serialized_exclusion(argument: str, value: Exclusion) -> Any:
    """Returns a checked exclusion in the form that a configuration can hold.

    Args:
        argument: The argument's name, for the error message.
        value: A checked exclusion.

    Returns:
        A list of patterns, Keras's serialization of a registered predicate, or `None`.

    Raises:
        ValueError: If a predicate is not registered with Keras, since loading could not
            find it.
    """
    if value is None:
        return None
    if not callable(value):
        return list(value)
    named = value if inspect.isroutine(value) else type(value)
    name = keras.saving.get_registered_name(named)
    registered = keras.saving.get_registered_object(name) is named
    if not registered or (named is not value and not hasattr(value, "from_config")):
        raise ValueError(
            f"A predicate in `{argument}` must be registered before the optimizer "
            f"can be saved. Received: {argument}={value!r}. Decorate a named "
            "function, or a class with `get_config` and `from_config`, with "
            "`@keras.saving.register_keras_serializable()`, or pass a list of "
            "patterns instead."
        )
    return keras.saving.serialize_keras_object(value)


def _default_reasons(variables):
    # The layers matter for rank 2 and above only.
    found = biases_and_norms(v for v in variables if len(v.shape) > 1)
    return [
        found.get(id(v), "") if len(v.shape) > 1 else f"rank {len(v.shape)}"
        for v in variables
    ]


def _user_reasons(variables, argument, exclusion):
    if exclusion is None:
        return [""] * len(variables)
    if callable(exclusion):
        name = getattr(exclusion, "__name__", type(exclusion).__name__)
        return [f"{argument}: {name}" if exclusion(v) else "" for v in variables]

    paths = [values.path(variable) for variable in variables]
    for pattern in exclusion:
        if not any(re.search(pattern, path) for path in paths):
            shown = ", ".join(paths[:5]) + (", …" if len(paths) > 5 else "")
            raise ValueError(
                f"Every pattern in `{argument}` must match the path of at least one "
                f"variable. Received: {pattern!r}, which matches none of the "
                f"{len(paths)} paths ({shown}). Correct or remove it; "
                "`LARS.describe` lists all paths."
            )
    return [
        next((f"{argument}: {p!r}" for p in exclusion if re.search(p, path)), "")
        for path in paths
    ]
