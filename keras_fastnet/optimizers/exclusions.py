"""Variables that LARS excludes from weight decay and adaptation."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keras_fastnet._keras.adapters import values
from keras_fastnet.arguments import checked_bool
from keras_fastnet.optimizers.treatment import Treatment

# What Keras's layers call biases and the variables of normalization layers, also those
# of rank 2 and above: of `MultiHeadAttention`, `GRU`, `LayerNormalization` on several
# axes. Names decide, since an optimizer is given variables without their layers.
_NAMES = ("bias", "beta", "gamma", "scale")


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
        exclude_from_weight_decay: Sequence[str] | None,
        exclude_from_adaptation: Sequence[str] | None,
    ):
        self._by_default = checked_bool(
            "exclude_biases_and_norms", exclude_biases_and_norms
        )
        self._by_user = {
            argument: checked_patterns(argument, value)
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
        """Returns the arguments, and the treatments that were kept."""
        arguments = {
            "exclude_biases_and_norms": self._by_default,
            **{
                name: patterns and list(patterns)
                for name, patterns in self._by_user.items()
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
    def from_config(config: dict[str, Any]) -> tuple[dict[str, Any], list[Treatment]]:
        """Reads a configuration of LARS.

        Args:
            config: A result of `LARS.get_config`.

        Returns:
            The configuration as arguments of `LARS`, and the treatments to keep: none
                if the exclusions have been edited since.
        """
        config = dict(config)
        saved = config.pop("treatments", None)
        decided = []
        if saved and all(config.get(k) == v for k, v in saved["decided_by"].items()):
            decided = [Treatment.from_config(t) for t in saved["of_each_variable"]]
        return config, decided


def checked_patterns(
    argument: str, value: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Returns validated patterns; `None` if there are none.

    Args:
        argument: The argument's name, for the error message.
        value: The value that the user passed.

    Raises:
        TypeError: If `value` is not a list of patterns.
        ValueError: If a pattern is not a regular expression.
    """
    if value is None:
        return None
    if isinstance(value, str) or not (
        isinstance(value, Sequence) and all(isinstance(item, str) for item in value)
    ):
        raise TypeError(
            f"`{argument}` must be a list of regular expressions for "
            f"`variable.path`. Received: {argument}={value!r}. "
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
    exclude_from_weight_decay: Sequence[str] | None,
    exclude_from_adaptation: Sequence[str] | None,
) -> list[Treatment]:
    """Returns the treatment of each variable.

    Args:
        variables: Keras or TensorFlow variables.
        exclude_biases_and_norms: Whether tensors of rank 0 and 1, biases and variables
            of normalization layers are excluded from both weight decay and adaptation.
        exclude_from_weight_decay: Patterns of further exclusions.
        exclude_from_adaptation: Patterns of further exclusions.

    Returns:
        One treatment for each variable, in order.

    Raises:
        ValueError: If a pattern matches none of the variables.
    """
    by_default = [
        _default_reason(variable) if exclude_biases_and_norms else ""
        for variable in variables
    ]
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


def _default_reason(variable: Any) -> str:
    """Returns why a variable is excluded by default; empty if it is not."""
    if len(variable.shape) < 2:
        return f"rank {len(variable.shape)}"
    name = values.path(variable).rpartition("/")[2].removesuffix(":0")
    return f"named {name}" if name in _NAMES else ""


def _user_reasons(
    variables: Sequence[Any], argument: str, patterns: Sequence[str] | None
) -> list[str]:
    """Returns the pattern that excludes each variable; empty if none does."""
    patterns = patterns or ()
    paths = [values.path(variable) for variable in variables]
    for pattern in patterns:
        if not any(re.search(pattern, path) for path in paths):
            shown = ", ".join(paths[:5]) + (", …" if len(paths) > 5 else "")
            raise ValueError(
                f"Every pattern in `{argument}` must match the path of at least one "
                f"variable. Received: {pattern!r}, which matches none of the "
                f"{len(paths)} paths ({shown}). Correct or remove it; "
                "`LARS.describe` lists all paths."
            )
    return [
        next((f"{argument}: {p!r}" for p in patterns if re.search(p, path)), "")
        for path in paths
    ]
