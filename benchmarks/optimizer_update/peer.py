"""Times tf-models-official's LARS and tf_keras's SGD on request.

`run.py` starts this script with the Python of an environment that has
tf-models-official. One line of JSON in: threads and shapes. Then for each line
"round" one line of JSON out: milliseconds by name. The first line out holds the
versions.
"""

import importlib.metadata
import json
import os
import sys

# Replies go to the real standard output; TensorFlow's output does not.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from official.modeling.optimization import lars  # noqa: E402
from timing import set_threads, timed, weights_and_gradients  # noqa: E402


def updater(optimizer, weights, gradients):
    # Its exclusions are patterns of names.
    variables = [
        tf.Variable(w, name=f"{'kernel' if w.ndim > 1 else 'bias'}_{i}")
        for i, w in enumerate(weights)
    ]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def update():
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return update


def reply(message):
    print(json.dumps(message), file=replies, flush=True)


def main():
    request = json.loads(sys.stdin.readline())
    set_threads(request["threads"])
    weights, gradients = weights_and_gradients(request["shapes"])
    updates = {
        "tf_keras SGD, momentum": updater(
            tf_keras.optimizers.SGD(1.0, momentum=0.9), weights, gradients
        ),
        "tf-models LARS": updater(
            lars.LARS(
                1.0,
                momentum=0.9,
                weight_decay_rate=1e-4,
                exclude_from_weight_decay=["bias"],
            ),
            weights,
            gradients,
        ),
    }
    for update in updates.values():
        timed(update)
    packages = ("tensorflow", "tf_keras", "tf-models-official")
    reply({name: importlib.metadata.version(name) for name in packages})
    for line in sys.stdin:
        if line.strip() == "round":
            reply({name: timed(update) for name, update in updates.items()})


if __name__ == "__main__":
    main()
