"""`fastnet check` passes on a working cluster and names broken invariants."""

import textwrap

import pytest

from keras_fastnet import cli
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks import invariants
from tests.documentation import ROOT, scripts

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("two_workers", marks=pytest.mark.smoke),
        pytest.param("four_workers", marks=pytest.mark.slow),
        "two_mpi",
    ],
)
def test_all_invariants_hold(request, cluster):
    for verdicts in request.getfixturevalue(cluster).run("checked"):
        assert len(verdicts) == len(invariants.ALL)
        for invariant, result, details in verdicts:
            assert result == "pass", f"{invariant}: {details}"


# Each fix is replaced by Keras's own code.
@pytest.mark.parametrize(
    ("fix", "invariant"),
    [
        ("loss.reduce_values", "same_update"),
        ("BaseOptimizer.apply", "same_update"),
        pytest.param(
            "WorkersEpochIterator._get_iterator", "same_update", marks=pytest.mark.slow
        ),
        pytest.param("layer_state", "equal_weights", marks=pytest.mark.slow),
        pytest.param(
            "loss.reduce_values", "examples_weigh_the_same", marks=pytest.mark.slow
        ),
        ("loss.apply_mask", "examples_weigh_the_same"),
        ("TensorFlowTrainer._aggregate_additional_loss", "own_steps"),
        pytest.param(
            "WorkersCallbackList.on_epoch_begin",
            "micro_batches",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "WorkersCallbackList.on_test_begin", "micro_batches", marks=pytest.mark.slow
        ),
        ("WorkersCallbackList.on_epoch_end", "micro_batches"),
        pytest.param(
            "TensorFlowTrainer._make_function", "micro_batches", marks=pytest.mark.slow
        ),
        pytest.param(
            "TFEpochIterator.__init__", "several_steps", marks=pytest.mark.slow
        ),
        ("SeedGenerator.next", "distinct_masks"),
        ("EpochOrder", "each_example_once"),
        pytest.param(
            "TFEpochIterator.__init__", "each_example_once", marks=pytest.mark.slow
        ),
        pytest.param(
            "TensorFlowTrainer._maybe_symbolic_build", "resume", marks=pytest.mark.slow
        ),
        pytest.param("allowed_callbacks", "callbacks_together", marks=pytest.mark.slow),
        pytest.param(
            "refusals outside the scope", "outside_the_scope", marks=pytest.mark.slow
        ),
    ],
)
def test_switching_a_fix_off_fails_its_invariant(two_workers, fix, invariant):
    expected = getattr(invariants, invariant).__doc__
    for verdicts in two_workers.run("checked", without=fix, only=invariant):
        ((name, result, _),) = verdicts
        assert (name, result) == (expected, "fail")


# A training script in plain Keras, and the three lines that distribute it.
PLAIN = """\
import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--batch", type=int, default=64)


def make_data(examples, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(examples, 8, 8, 1)).astype("float32")
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype("int64")


def main():
    options = parser.parse_args()
    print("training for", options.epochs, "epochs")
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    layers += [keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    best = keras.callbacks.ModelCheckpoint("best.keras", monitor="accuracy")
    x, y = make_data(1_000, seed=0)
    weights = {0: 1.0, 1: 2.0}
    fit = {"batch_size": options.batch, "epochs": options.epochs}
    model.fit(x, y, class_weight=weights, callbacks=[best], **fit)
    print(model.evaluate(*make_data(200, seed=1)))


if __name__ == "__main__":
    main()
"""
_MAKING = PLAIN[PLAIN.index("    layers = [") : PLAIN.index("    best =")]
DISTRIBUTED = PLAIN.replace(
    "import numpy as np\n",
    "import numpy as np\n\nimport keras_fastnet\n\n"
    "strategy = keras_fastnet.TorusStrategy()\n",
).replace(_MAKING, "    with strategy.scope():\n" + textwrap.indent(_MAKING, "    "))

# No layer is built before `fit`, and the data end after 8 examples.
SUBCLASS = """
import keras, keras_fastnet
import tensorflow as tf

class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(4, "tanh")])
        self.outer = keras.layers.Dense(1)

    def call(self, x):
        return self.outer(self.inner(x["a"]))

with keras_fastnet.TorusStrategy().scope():
    model = Network()
    model.compile(keras.optimizers.SGD(0.01), "mse")
x = tf.random.normal((8, 3))
data = tf.data.Dataset.from_tensor_slices(({"a": x}, tf.reduce_sum(x, 1)))
try:
    model.fit(data.shuffle(8).batch(3), epochs=2)
except Exception:
    pass
raise SystemExit("trained")
"""


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        pytest.param(
            scripts(ROOT / "docs" / "tutorial.md")["train.py"],
            [],
            id="tutorial",
            marks=pytest.mark.slow,
        ),
        pytest.param(DISTRIBUTED, ["--epochs", "2"], id="three lines added"),
        pytest.param(SUBCLASS, [], id="subclass", marks=pytest.mark.slow),
    ],
)
def test_a_script_is_checked_as_it_stands(two_workers, tmp_path, script, arguments):
    (tmp_path / "train.py").write_text(script)
    words = [str(tmp_path / "train.py"), *arguments]
    for verdicts in two_workers.run("checked_script", words=words):
        assert [result for _, result, _ in verdicts] == ["pass", "pass"], verdicts


@pytest.mark.slow
def test_three_lines_distribute_a_plain_script(fastnet, tmp_path):
    assert len([line for line in PLAIN.splitlines() if line.strip()]) <= 30
    added = [line for line in DISTRIBUTED.splitlines() if line.strip() not in PLAIN]
    assert len(added) == 3
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    done = fastnet("check", "--workers", 2, script, "--epochs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(invariants.ALL)} pass, 0 fail, 0 refused" in done.stdout
    # The check runs the script several times.
    assert done.stdout.count("training for 2 epochs") == 1
    assert not (tmp_path / "best.keras").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param(PLAIN, "strategy = keras_fastnet.TorusStrategy()", id="plain"),
        pytest.param(
            *("def make_model():\n    pass\n", "without a call of `fit`"),
            id="no fit",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("import keras\nkeras.none()\n", "AttributeError"),
            id="error",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scripts_that_cannot_be_checked(fastnet, tmp_path, script, words):
    (tmp_path / "train.py").write_text(script)
    done = fastnet("check", "--workers", 1, tmp_path / "train.py", "--epochs", 2)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert done.stderr.count("fastnet: error") == 1


SCRIPT = """
import keras, keras_fastnet
import numpy as np
strategy = keras_fastnet.TorusStrategy()
{first}
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", {loss})
model.fit(np.ones((8, 3)), np.ones((8, 2)))
"""


@pytest.mark.slow
def test_a_model_that_is_not_compiled_is_refused(fastnet, tmp_path):
    script = tmp_path / "train.py"
    compiled = SCRIPT.format(first="", loss='"mse"')
    script.write_text(compiled.replace("    model.compile", "    # model.compile"))
    done = fastnet("check", "--workers", 1, script)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "refused  the update of one device" in done.stdout
    assert "must be compiled" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home", "fix", "keras_own", "invariant"),
    [
        ("keras.src.optimizers.loss_scale_optimizer",
         "LossScaleOptimizer.apply", "LossScaleOptimizer.apply.__wrapped__",
         "overflow_agreement"),
        ("keras_fastnet._keras.callbacks",
         "WorkersCallbackList.on_train_batch_end",
         "super(WorkersCallbackList, WorkersCallbackList).on_train_batch_end",
         "callbacks_together"),
        ("keras_fastnet._keras.keras3.data",
         "WorkersEpochIterator.reset",
         "super(WorkersEpochIterator, WorkersEpochIterator).reset",
         "unequal_shards"),
    ],
)  # fmt: skip
def test_switching_a_fix_off_that_prevents_hangs_fails_its_invariant(
    fastnet, tmp_path, home, fix, keras_own, invariant
):
    script = tmp_path / "train.py"
    owner = fix.partition(".")[0]
    first = f"from {home} import {owner}\n{fix} = {keras_own}"
    script.write_text(SCRIPT.format(first=first, loss='"mse"'))
    done = fastnet("check", "--timeout", 15, script)
    assert done.returncode == 1
    assert f"fail     {getattr(invariants, invariant).__doc__}" in done.stdout


@pytest.mark.slow
def test_a_model_compiled_with_xla(fastnet, tmp_path):
    layers = [keras.Input((3,)), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=True)
    model.save(tmp_path / "model.keras")
    done = fastnet("check", "--workers", 2, tmp_path / "model.keras")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BatchNormalization synchronized; without XLA" in " ".join(
        done.stdout.replace("[0]", "").split()
    )


def test_workers_that_wait_for_each_other_fail_after_the_timeout(fastnet, tmp_path):
    script = tmp_path / "train.py"
    # The first run of the script ends; those of the check do not.
    wait = "import sys, time\nif hasattr(sys, 'again'): time.sleep(1000)\nsys.again = 1"
    script.write_text(SCRIPT.format(first=wait, loss='"mse"'))
    done = fastnet("check", "--workers", 1, "--timeout", 3, script)
    assert done.returncode == 1
    assert "fail     the update of one device" in done.stdout
    assert "no end within 3 s" in done.stdout


@pytest.mark.slow
def test_a_saved_model(fastnet, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.save(tmp_path / "model.keras")
    done = fastnet("check", "--workers", 1, tmp_path / "model.keras")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(invariants.ALL)} pass, 0 fail, 0 refused" in done.stdout
    assert f"checking {tmp_path / 'model.keras'}" in done.stdout


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (["nothing.py"], "was not found"),
        (["weights.h5"], "must be a .keras file"),
        (["train.py:make_model"], "Write `fastnet check train.py`"),
        ([__file__, "--workers", "2"], "must stand before the script"),
    ],
)
def test_wrong_sources_are_errors(capsys, source, words):
    assert cli.main(["check", *source]) == 2
    assert words in capsys.readouterr().err
