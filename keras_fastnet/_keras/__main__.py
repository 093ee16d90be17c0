"""Lists the changes to Keras and TensorFlow: `python -m keras_fastnet._keras`."""

import argparse
from collections.abc import Sequence

from keras_fastnet._keras import adapters as adapters  # Registers the changes.
from keras_fastnet._keras.keras_api import IS_KERAS_2, keras
from keras_fastnet._keras.wrapping import CHANGES

_ELSEWHERE = (
    ("all methods `on_…` of a `CallbackList`", "of a model with a strategy"),
    ("three methods of a `TFEpochIterator`", "over data that a strategy distributes"),
    ("`tf.function`", "while Keras builds the step functions of a model on TPUs"),
    ("`_aggregate_additional_loss` of a model", "during its step on a replica"),
    ("`assign` of weights and of layers' states", "in custom steps and layers"),
    ("`result` of metrics", "while a step computes results over all replicas"),
    (
        "`configure_collective_ops` of TensorFlow's context",
        "while a strategy on GPUs is made",
    ),
    ("`all_reduce` of a replica's context", "while an optimizer receives sums"),
    ("`_get_iterator` of a `PyDataset`'s adapter", "while workers iterate over it"),
    ("`fit` of a model", "until `fastnet check` has reached a script's first call"),
    ("`make_train_function`", "in a worker of `fastnet run` without a strategy"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the list.

    Args:
        arguments: Command-line arguments. Defaults to `sys.argv`.
    """
    parser = argparse.ArgumentParser(
        "python -m keras_fastnet._keras",
        description="Lists the functions of Keras and TensorFlow that are changed.",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="as a section of docs/upstream.md"
    )
    options = parser.parse_args(arguments)
    if options.markdown:
        print(markdown())
        return
    print(f"{keras.__name__} {keras.__version__}, {len(CHANGES)} changes")
    for change in sorted(CHANGES, key=lambda change: change.path):
        print(change.path)


def markdown() -> str:
    """Returns the section of docs/upstream.md for this Keras."""
    lines = [
        f"## Keras {keras.__version__.partition('.')[0]}",
        "",
        "| Function | Without the change | The change can go when |",
        "| --- | --- | --- |",
    ]
    for change in sorted(CHANGES, key=lambda change: change.path):
        lines.append(f"| `{change.path}` | {change.stock} | {change.until} |")
    if IS_KERAS_2:
        return "\n".join(lines)
    lines += ["", "Of single objects, or only during a call:", ""]
    lines += [f"- {what}, {when}" for what, when in _ELSEWHERE]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
