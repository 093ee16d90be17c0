"""The exclusions of one LARS optimizer."""

from collections.abc import Sequence
from typing import Any

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.arguments import checked_bool
from keras_fastnet.optimizers.exclusion_rules import (
    Exclusion,
    checked_exclusion,
    recalled,
    serialized_exclusion,
    treatments,
)
from keras_fastnet.optimizers.treatment import Treatment


class Exclusions:
    """What the user excludes, and what became of it for the variables at hand.

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
        # What was decided when the optimizer was built, or by the saved one that
        # it comes from.
        self._decided: list[Treatment] = []

    def decide(self, variables: Sequence[Any]) -> list[Treatment]:
        """Returns one treatment for each variable, without keeping them.

        Raises:
            ValueError: If a pattern matches none of the variables.
        """
        return recalled(self._decided, variables) or treatments(
            variables, exclude_biases_and_norms=self._by_default, **self._by_user
        )

    def keep(self, decided: Sequence[Treatment]) -> None:
        """Keeps decisions, so that saving carries them along."""
        self._decided = list(decided)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, and the decisions that were kept.

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
            config: What `LARS.get_config` returned.
            custom_objects: Names that are not registered with Keras.

        Returns:
            The configuration as arguments of `LARS`, and the decisions to keep:
            none if the exclusions were edited since.
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
