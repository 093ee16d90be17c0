"""`fastnet check` passes on a working cluster and names broken invariants."""

import pytest

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks import invariants

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
        ("loss.scale_loss_for_distribution", "same_update"),
        pytest.param(
            "loss.unscale_loss_for_distribution", "same_update", marks=pytest.mark.slow
        ),
        ("BaseOptimizer.apply", "same_update"),
        pytest.param(
            "TFOptimizer._all_reduce_sum_gradients",
            "same_update",
            marks=pytest.mark.slow,
        ),
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


SCRIPT = """
from keras_fastnet._keras.keras_api import keras

def make_model(loss="mse"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", loss)
    return model

def scalar():
    return make_model(lambda y, p: keras.ops.mean((y - p) ** 2))

def uncompiled():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

def waiting():
    import time
    time.sleep(1000)

if __name__ == "__main__":
    raise SystemExit("trained")
"""


@pytest.mark.parametrize(
    ("function", "workers", "code", "words"),
    [
        pytest.param(
            "scalar",
            *(2, 3, ["refused  the update of one device", "returns a scalar"]),
            marks=pytest.mark.slow,
        ),
        pytest.param("uncompiled", 1, 3, ["must be compiled"], marks=pytest.mark.slow),
        ("other", 1, 2, ["must have a function `other`"]),
    ],
)
def test_scripts_without_a_model_that_can_be_trained(
    fastnet, tmp_path, function, workers, code, words
):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = fastnet("check", "--workers", workers, f"{script}:{function}")
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout + done.stderr
    assert "trained" not in done.stdout


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
    script.write_text(f"from {home} import {owner}\n{fix} = {keras_own}\n{SCRIPT}")
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
    script.write_text(SCRIPT)
    done = fastnet("check", "--workers", 1, "--timeout", 3, f"{script}:waiting")
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
    [("nothing.py", "was not found"), ("weights.h5", "must be a .keras file")],
)
def test_wrong_sources_are_errors(fastnet, source, words):
    done = fastnet("check", source)
    assert done.returncode == 2
    assert words in done.stderr
