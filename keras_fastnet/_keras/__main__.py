"""Lists the changes to Keras and TensorFlow: `python -m keras_fastnet._keras`."""

import argparse
from collections.abc import Sequence

from keras_fastnet._keras import adapters as adapters  # Registers the changes.
from keras_fastnet._keras.keras_api import IS_KERAS_2, keras
from keras_fastnet._keras.wrapping import CHANGES, EXTENSIONS, Change, install

_ELSEWHERE = (
    ("`tf.function`", "while Keras makes the steps of a model that XLA compiles"),
    ("`call` of a model", "while XLA compiles its forward pass"),
    ("`result` of metrics", "while a step asks for results over all replicas"),
    ("`call` of stateful recurrent layers", "while a step runs"),
    ("`all_reduce` of a replica's context", "while an optimizer is given sums"),
    ("`_get_iterator` of a `PyDataset`'s adapter", "while workers iterate over it"),
    ("`_enumerate_iterator` of an epoch iterator", "in the first epoch that resumes"),
    ("`fit` of a model", "until `fastnet check` has reached a script's first call"),
    ("`make_train_function`", "in a worker of `fastnet run` without a strategy"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the list.

    Args:
        arguments: Those of the command line. Defaults to `sys.argv`.
    """
    parser = argparse.ArgumentParser(
        "python -m keras_fastnet._keras",
        description="Lists the functions of Keras and TensorFlow that are changed.",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="as a section of docs/upstream.md"
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="make the changes first, as a strategy does",
    )
    options = parser.parse_args(arguments)
    if options.markdown:
        print(markdown())
        return
    if options.install:
        install()
    print(f"{keras.__name__} {keras.__version__}, {len(CHANGES)} changes")
    for change in sorted(CHANGES, key=_order):
        state = "installed" if change.is_installed else "not installed"
        print(f"{state:13}  {change.path}")


def markdown() -> str:
    """Returns the section of docs/upstream.md for this Keras."""
    lines = [
        f"## Keras {keras.__version__.partition('.')[0]}",
        "",
        "| Function | Without the change | The change can go when |",
        "| --- | --- | --- |",
    ]
    for change in sorted(CHANGES, key=_order):
        lines.append(f"| `{change.path}` | {change.stock} | {change.until} |")
    if IS_KERAS_2:
        return "\n".join(lines)
    lines += ["", "Objects of Keras that are given the methods of a subclass:", ""]
    lines += sorted(f"- {_methods(kind)}" for kind in EXTENSIONS)
    lines += ["", "For the time of a call only:", ""]
    lines += [f"- {what}, {when}" for what, when in _ELSEWHERE]
    return "\n".join(lines)


def _methods(kind: type) -> str:
    base = kind.__mro__[1]
    names = [name for name, value in vars(kind).items() if callable(value)]
    return f"`{base.__name__}`: {', '.join(f'`{name}`' for name in names)}"


def _order(change: Change) -> str:
    return change.path


if __name__ == "__main__":
    main()
