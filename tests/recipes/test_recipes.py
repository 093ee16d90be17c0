"""Recipes and models against tables made by hand from the papers."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import tensorflow as tf

import keras_fastnet as fastnet
from keras_fastnet import recipes
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.recipes import RECIPES
from keras_fastnet.schedules import linear_scaling
from tests.variables import new_variable

CIFAR = {"data": 50_000, "ranks": 2}

SMALL = {"epochs": 1, "device_batch": 8, "global_batch": 8}


def classifier(classes, activation=None):
    # As with mixed precision: the last layer computes in float32.
    last = keras.layers.Dense(classes, activation, dtype="float32")
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), last])


def rates(recipe, *epochs):
    return [recipe.rate_at(epoch) for epoch in epochs]


def test_facebook2017():
    """0.1 x 8,192 / 256 = 3.2; 5 epochs of warm-up from 0.1; a tenth at 30, 60, 80."""
    recipe = recipes.facebook2017(ranks=256)
    assert recipe.phases == {0: 8192}
    assert recipe.epochs == 90
    # 1,281,167 / 8,192 = 156.4
    assert recipe.updates_per_epoch(0) == 157
    np.testing.assert_allclose(
        rates(recipe, 0, 1, 4, 5, 29.9, 30, 59.9, 60, 79.9, 80, 90),
        [0.1, 0.72, 2.58, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032],
    )
    assert (recipe.momentum, recipe.weight_decay) == (0.9, 1e-4)
    assert recipe.momentum_correction and recipe.zero_gamma


def test_facebook2017_for_another_batch():
    """The linear scaling rule gives 0.1 x 1024 / 256, at the same epochs."""
    recipe = recipes.facebook2017(ranks=32, global_batch=1024)
    np.testing.assert_allclose(rates(recipe, 5, 30, 60, 80), [0.4, 0.04, 0.004, 0.0004])


def test_berkeley2017():
    """32 at 32,768; 14 epochs of warm-up, then (1 - t)^2 over the other 76."""
    recipe = recipes.berkeley2017(ranks=1024)
    assert recipe.phases == {0: 32_768}
    np.testing.assert_allclose(rates(recipe, 0, 7, 14, 52, 90), [0, 16, 32, 8, 0])
    # A quarter of the batch gives half the rate.
    quarter = recipes.berkeley2017(ranks=256, global_batch=8192)
    assert quarter.peak == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("batch", "rate", "warmup"), [(8192, 10, 4), (16_384, 24, 5), (32_768, 32, 10)]
)
def test_berkeley2017_alexnet(batch, rate, warmup):
    recipe = recipes.berkeley2017(model="alexnet_bn", ranks=256, global_batch=batch)
    assert recipe.epochs == 100
    assert (recipe.peak, recipe.warmup_epochs) == (rate, warmup)
    assert recipe.weight_decay == 5e-4
    # After half of the decay, a quarter of the rate is left.
    assert recipe.rate_at((warmup + 100) / 2) == pytest.approx(rate / 4)


def test_ibm2017():
    recipe = recipes.ibm2017(ranks=256)
    assert recipe.model == "resnet101"
    # Numerics as Goyal et al.
    other = recipes.facebook2017(ranks=256)
    assert rates(recipe, 0, 3, 40, 85) == rates(other, 0, 3, 40, 85)
    assert {s.origin for n, s in recipe.settings.items() if n != "model"} <= {
        "chosen",
        "paper",
    }


def test_sony2018():
    """2,176 GPUs with 16 images each, and with 32 after five epochs."""
    recipe = recipes.sony2018(ranks=2176)
    assert recipe.phases == {0: 34_816, 5: 69_632}
    assert [recipe.updates_per_epoch(epoch) for epoch in (4, 5)] == [37, 19]
    assert recipe.precision == "mixed_float16"
    # 32 x sqrt(34,816 / 32,768) after 5 epochs; a quarter after half of the other 85.
    np.testing.assert_allclose(
        rates(recipe, 0, 5, 47.5, 90), [0, 32.98485, 8.246211, 0], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("batch", "rate", "warmup", "momentum", "decay", "epochs"),
    [
        (4_096, 10.0, 5, 0.9, 2e-4, 40),
        (8_192, 17.0, 5, 0.9, 2e-4, 42),
        (32_768, 21.2, 16, 0.94, 2.5e-5, 56),
        (65_536, 24.7, 31, 0.952, 1e-4, 85),
    ],
)
def test_mlperf(batch, rate, warmup, momentum, decay, epochs):
    recipe = recipes.mlperf(global_batch=batch, ranks=128)
    found = (recipe.peak, recipe.warmup_epochs, recipe.momentum, recipe.weight_decay)
    assert found == (rate, warmup, momentum, decay)
    assert recipe.epochs == epochs
    assert recipe.settings["peak"].origin == "paper"
    assert recipe.rate_at(recipe.epochs) == pytest.approx(1e-4)
    assert recipe.label_smoothing == 0.1


@pytest.mark.parametrize(
    ("name", "phases", "peak", "warmup", "updates"),
    [
        # 8,192 / 1,281,167 x 50,000 = 319.7: 5 steps of 64. 0.1 x 320 / 256.
        ("facebook2017", {0: 320}, 0.125, 5, 157),
        ("ibm2017", {0: 320}, 0.125, 5, 157),
        # 1,278.8: 20 steps of 64. 32 x sqrt(1,280 / 32,768).
        ("berkeley2017", {0: 1280}, 6.3245553, 14, 40),
        # 1,358.8: 42 steps of 32. 32 x sqrt(1,344 / 32,768).
        ("sony2018", {0: 1344, 5: 2688}, 6.4807407, 5, 38),
        # 10 x sqrt(1,280 / 4,096), the nearest point; 5 of its 40 epochs.
        ("mlperf", {0: 1280}, 5.5901699, 5, 40),
    ],
)
def test_small_datasets_keep_the_updates_per_epoch(name, phases, peak, warmup, updates):
    recipe = RECIPES[name](**CIFAR)
    assert recipe.phases == phases
    assert recipe.peak == pytest.approx(peak)
    assert recipe.warmup_epochs == warmup
    assert recipe.updates_per_epoch(0) == updates
    assert recipe.settings["phases"].origin != "paper"


@pytest.mark.parametrize("name", RECIPES)
def test_fewer_epochs_keep_fractions(name):
    """With a third of the epochs, warm-up and decay take a third of the time."""
    whole = RECIPES[name](ranks=2176)
    third = RECIPES[name](ranks=2176, epochs=whole.epochs // 3)
    scale = third.epochs / whole.epochs
    assert third.warmup_epochs == pytest.approx(whole.warmup_epochs * scale)
    for part in (0.03, 0.3, 0.5, 0.8):
        epoch = part * whole.epochs
        assert third.rate_at(scale * epoch) == pytest.approx(whole.rate_at(epoch))
    assert third.settings["epochs"].origin == "chosen"


@pytest.mark.smoke
@pytest.mark.parametrize("name", RECIPES)
def test_training_follows_the_recipe(name):
    """`fit` uses the learning rate and the batch of the recipe in every update."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1024, 4)).astype("float32")
    y = random.integers(0, 3, 1024)
    recipe = RECIPES[name](
        tf.distribute.get_strategy(),
        (x, y),
        epochs=3,
        device_batch=16,
        global_batch=64,
    )
    with recipe.scope():
        model = classifier(3)
        recipe.compile(model, metrics=["accuracy"])
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            updates = int(self.model.optimizer.iterations.numpy())
            if updates > len(seen):
                seen.append(float(self.model.optimizer.learning_rate.numpy()))

    arguments = recipe.fit_arguments
    arguments["callbacks"].append(Watch())
    history = model.fit(x, y, verbose=0, **arguments).history
    assert 0 < history["accuracy"][-1] <= 1
    expected = []
    for epoch in range(3):
        batch = 64 if epoch == 0 or name != "sony2018" else 128
        steps = 1024 // batch
        expected += [recipe.rate_at(epoch + step / steps) for step in range(steps)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_sgd_has_weight_decay_inside_the_gradient():
    """Compares SGD with equations 3 and 10 of Goyal et al. in NumPy."""
    recipe = recipes.facebook2017(ranks=8)
    optimizer = recipe.optimizer().inner_optimizer
    weight = new_variable([[1.0, -2.0], [0.5, 3.0]], name="kernel")
    bias = new_variable([1.0, 1.0], name="bias")
    w, v, b, u = weight.numpy(), 0.0, bias.numpy(), 0.0
    random = np.random.default_rng(0)
    for rate in (0.1, 0.2, 0.4):
        g, h = random.normal(size=(2, 2)), random.normal(size=2)
        optimizer.learning_rate = rate
        optimizer.apply(
            [np.asarray(g, "float32"), np.asarray(h, "float32")],
            [weight, bias],
        )
        v = 0.9 * v + rate * (g + 1e-4 * w)
        u = 0.9 * u + rate * h
        w, b = w - v, b - u
    np.testing.assert_allclose(weight.numpy(), w, rtol=1e-5)
    np.testing.assert_allclose(bias.numpy(), b, rtol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_table_has_every_setting_and_its_source(name):
    recipe = RECIPES[name](**CIFAR, epochs=7)
    text = str(recipe)
    assert text.startswith(f"Recipe {name}. Published: ")
    for setting, (_, origin, source) in recipe.settings.items():
        assert getattr(recipe, setting) == recipe.settings[setting].value
        (line,) = (line for line in text.splitlines() if line.startswith(f"{setting} "))
        assert f" {origin} " in line
        assert source[:20] in line


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_can_be_copied(name):
    recipe = RECIPES[name](**CIFAR)
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert dataclasses.asdict(recipe)["peak"] == recipe.peak


def test_copy_of_scaled_rate_keeps_its_derivation():
    rate = linear_scaling(0.1, 8192)
    again = copy.copy(rate)
    assert (again, again.derivation) == (rate, rate.derivation)


def test_float16_recipe_scales_the_loss():
    scaled = recipes.sony2018(**CIFAR).optimizer()
    assert scaled.loss_scaling
    assert not recipes.facebook2017(**CIFAR).optimizer().loss_scaling


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": 0}, ValueError, "`data` must be an integer >= 1"),
        ({"epochs": 1.5}, TypeError, "`epochs` must be an integer"),
        (
            {"ranks": 4, "global_batch": 8200},
            ValueError,
            "Received: global_batch=8200, ranks=4, device_batch=32. "
            "Pass, for example, 8,192 and 8,320",
        ),
        ({"data": 100, "ranks": 4}, ValueError, "Lower `device_batch`"),
        ({"strategy": "torus"}, TypeError, "`strategy` must be a strategy"),
        (
            {"strategy": tf.distribute.get_strategy(), "ranks": 2},
            ValueError,
            "Received: ranks=2, and a strategy with 1. Leave out `ranks`",
        ),
        ({"data": iter(())}, TypeError, "Received: tuple_iterator. Pass arrays"),
        ({"data": ((1, 2), 3)}, TypeError, "Received: int"),
    ],
)
def test_sizes_that_do_not_fit_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        recipes.facebook2017(**arguments)


def test_unknown_model_raises():
    with pytest.raises(ValueError, match="Received: model='vgg'"):
        recipes.berkeley2017(model="vgg")


def test_small_batches_warm_up_from_zero():
    """The start of 0.1 of Goyal et al. would not be below the peak."""
    recipe = recipes.facebook2017(global_batch=256, ranks=8)
    assert rates(recipe, 0, 5) == [0.0, pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (lambda: fastnet.models.cifar_resnet(8), 3),
        (lambda: fastnet.models.cifar_resnet(14), 6),
        (
            lambda: keras.applications.ResNet50(
                weights=None, input_shape=(32, 32, 3), classes=2
            ),
            16,
        ),
    ],
)
def test_zero_gamma_makes_blocks_the_identity(model, blocks):
    model = model()
    changed = fastnet.models.zero_gamma(model)
    assert len(changed) == blocks
    for name in changed:
        assert not model.get_layer(name).gamma.numpy().any()
    others = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.name not in changed
    ]
    assert others and all(layer.gamma.numpy().all() for layer in others)
    # The residual branches are zero, so the output of each `Add` is its other input.
    adds = [layer for layer in model.layers if isinstance(layer, keras.layers.Add)]
    inputs = [tensor for add in adds for tensor in add.input]
    outputs = [add.output for add in adds]
    probe = keras.Model(model.input, [*inputs, *outputs])
    values = probe(np.random.default_rng(0).normal(size=(2, 32, 32, 3)))
    pairs, sums = values[: 2 * blocks], values[2 * blocks :]
    for first, second, total in zip(pairs[::2], pairs[1::2], sums, strict=True):
        silent = [not np.asarray(branch).any() for branch in (first, second)]
        assert sum(silent) == 1
        kept = second if silent[0] else first
        np.testing.assert_array_equal(kept, total)


def test_zero_gamma_without_residual_blocks_raises():
    with pytest.raises(ValueError, match="Leave it out for this model"):
        fastnet.models.zero_gamma(fastnet.models.alexnet_bn((67, 67, 3), classes=2))


@pytest.mark.parametrize("depth", [9, 21])
def test_invalid_depth_raises(depth):
    with pytest.raises(ValueError, match=f"Received: depth={depth}"):
        fastnet.models.cifar_resnet(depth)


def test_images_too_small_for_alexnet_raise():
    with pytest.raises(ValueError, match="at least 67 x 67"):
        fastnet.models.alexnet_bn((64, 64, 3))


@pytest.mark.parametrize("depth", [8, 20])
def test_cifar_resnet_has_depth_layers(depth):
    """He et al., section 4.2, without the shortcuts' convolutions."""
    model = fastnet.models.cifar_resnet(depth)
    weighted = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.Dense)
        or (isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3))
    ]
    assert len(weighted) == depth


def dataset(x, y, batch=16):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


class Sequence(getattr(keras.utils, "PyDataset", object)):
    """The same as a `PyDataset`."""

    num_batches = 3

    def __init__(self, x, y):
        super().__init__()
        self.arrays = x, y

    def __getitem__(self, index):
        return tuple(part[16 * index : 16 * (index + 1)] for part in self.arrays)


@pytest.mark.parametrize(
    ("data", "examples", "device_batch", "own_batches"),
    [
        (lambda x, y: (x, y), 48, 32, False),
        (lambda x, y: x, 48, 32, False),
        (lambda x, y: {"image": x}, 48, 32, False),
        (lambda x, y: len(x), 48, 32, False),
        (dataset, 48, 16, True),
        (lambda x, y: dataset(x, y).map(lambda *b: b), 48, 16, True),
        (lambda x, y: tf.data.Dataset.zip(dataset(x, y)), 48, 16, True),
        (Sequence, 48, 16, True),
    ],
)
def test_sizes_are_those_of_the_data(data, examples, device_batch, own_batches):
    x, y = np.ones((48, 4), "float32"), np.zeros(48, "int32")
    recipe = recipes.facebook2017(tf.distribute.get_strategy(), data(x, y), epochs=2)
    assert recipe.sizes.train_size == examples
    assert recipe.micro_batch == device_batch
    assert ("batch_size" not in recipe.fit_arguments) == own_batches
    assert recipe.fit_arguments["epochs"] == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda d: d.batch(16).repeat(), "unknown or infinite length, or an empty one"),
        (lambda d: d.batch(16).filter(lambda *_: True), "unknown or infinite length"),
        (lambda d: d, "arrays of other shapes. Pass, for example, `dataset.batch"),
        (lambda d: d.batch(15), "batches of 15 for 2 replicas. Make batches of"),
        (lambda d: d.batch(8), r"Leave it out, or make batches of 16\."),
    ],
)
def test_unsuitable_datasets_raise(data, message):
    arrays = np.ones((48, 4), "float32"), np.zeros(48, "int32")
    given = data(tf.data.Dataset.from_tensor_slices(arrays))
    with pytest.raises(ValueError, match=f"Received: .*{message}"):
        recipes.facebook2017(None, given, ranks=2, device_batch=8)


LABELS = np.arange(48) % 3


@pytest.mark.parametrize(
    "labels",
    [LABELS, LABELS[:, None], LABELS.astype("float32"), np.eye(3)[LABELS]],
    ids=["integers", "column", "floats", "one-hot"],
)
@pytest.mark.parametrize("name", ["facebook2017", "mlperf"])
def test_labels_of_every_kind_train_alike(name, labels):
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    recipe = RECIPES[name](None, (x, labels), **SMALL)
    keras.utils.set_random_seed(0)
    with recipe.scope():
        model = classifier(3)
        recipe.compile(model)
    logits = np.asarray(model(x[:8]), "float64")
    loss = model.evaluate(x[:8], labels[:8], verbose=0)
    # Cross-entropy by hand, with the recipe's smoothing: 0, and 0.1 over three classes.
    target = np.eye(3)[LABELS[:8]]
    target = target * (1 - recipe.label_smoothing) + recipe.label_smoothing / 3
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert loss == pytest.approx(-(target * log).sum(-1).mean(), rel=1e-5)
    model.fit(x, labels, verbose=0, **recipe.fit_arguments)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_out_of_range_show_as_a_loss_of_nan(wrong):
    model = classifier(3)
    model.compile("sgd", recipes.mlperf(**CIFAR).loss(from_logits=True))
    labels = np.array([0, 1, 2, wrong])
    assert np.isnan(model.evaluate(np.ones((4, 4)), labels, verbose=0))


@pytest.mark.parametrize("activation", ["softmax", None])
def test_compile_reads_from_the_last_layer_whether_it_outputs_logits(activation):
    recipe = recipes.facebook2017(None, 48, **SMALL)
    sequential = classifier(3, activation)
    functional = keras.Model(sequential.inputs, sequential.outputs)
    for model in (sequential, functional):
        recipe.compile(model)
        assert model.loss.get_config()["from_logits"] == (activation is None)


def test_a_last_layer_that_does_not_tell_needs_from_logits():
    recipe = recipes.facebook2017(None, 48, **SMALL)
    model = classifier(3)
    model.add(keras.layers.Activation("linear", dtype="float32"))
    with pytest.raises(ValueError, match=r"Received: .*, Activation, does not tell"):
        recipe.compile(model)
    recipe.compile(model, from_logits=False)
    assert not model.loss.get_config()["from_logits"]


def test_scope_has_the_policy_and_restores_the_one_before():
    recipe = recipes.sony2018(None, 48, **SMALL)
    with pytest.raises(KeyError), recipe.scope():
        model = classifier(3)
        raise KeyError
    assert keras.layers.Dense(1).compute_dtype == "float32"
    assert [layer.compute_dtype for layer in model.layers] == ["float16", "float32"]
    recipe.compile(model)
    assert model.optimizer.loss_scaling


@pytest.mark.parametrize(
    ("built", "made"),
    [(None, {}), ("mixed_float16", {"precision": "float32"})],
)
def test_compile_of_a_model_of_another_policy_raises(built, made):
    if built:
        with recipes.sony2018(None, 48, **SMALL).scope():
            model = classifier(3)
    else:
        model = classifier(3)
    recipe = recipes.sony2018(None, 48, **SMALL, **made)
    with pytest.raises(
        ValueError, match=r"Build the model in `with recipe.scope\(\):`, or pass, for"
    ):
        recipe.compile(model)


def test_passed_precision_replaces_that_of_the_recipe():
    recipe = recipes.sony2018(None, 48, **SMALL, precision="mixed_bfloat16")
    assert recipe.precision == "mixed_bfloat16"
    source = recipe.settings["precision"]
    assert source[1:] == ("chosen", "as passed; the recipe has mixed_float16")
    assert not recipe.optimizer().loss_scaling


def test_compile_makes_blocks_the_identity_unless_they_are_trained(capsys):
    recipe = recipes.facebook2017(None, 48, **SMALL)
    inner = fastnet.models.cifar_resnet(8)
    model = keras.Sequential([keras.Input((32, 32, 3)), inner])
    model.add(keras.layers.Dense(2))
    recipe.compile(model)
    assert "3 residual blocks start as the identity" in capsys.readouterr().out
    gammas = [
        layer.gamma
        for layer in inner.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert sum(not gamma.numpy().any() for gamma in gammas) == 3
    for gamma in gammas:
        gamma.assign(np.full(gamma.shape, 0.5))
    recipe.compile(model)
    assert "stay as they are" in capsys.readouterr().out
    assert all((gamma.numpy() == 0.5).all() for gamma in gammas)
    recipe.compile(classifier(3))
    assert "found no residual blocks" in capsys.readouterr().out


def test_model_of_another_strategy_raises():
    recipe = recipes.facebook2017(tf.distribute.MirroredStrategy(["CPU:0"]), 48)
    with pytest.raises(ValueError, match="outside the scope of MirroredStrategy"):
        recipe.compile(classifier(3))


def test_old_arguments_warn_and_say_what_to_write():
    for old in (
        lambda: recipes.sony2018(50_000, ranks=2),
        lambda: recipes.sony2018(train_size=50_000, ranks=2),
    ):
        with pytest.warns(DeprecationWarning, match=r"`sony2018\(strategy, data\)`"):
            assert old() == recipes.sony2018(**CIFAR)
    with pytest.warns(DeprecationWarning, match=r"`TorusStrategy\(grid=\(64, 4\)\)`"):
        recipe = recipes.ibm2017(ranks=256, grid=(64, 4))
    with pytest.warns(DeprecationWarning, match=r"`ibm2017\(strategy, data\)`"):
        assert recipe.strategy_options == {"grid": (64, 4), "wire_dtype": None}


def test_the_loss_is_saved_as_that_of_keras():
    loss = recipes.sony2018(**CIFAR).loss(from_logits=True)
    saved = keras.losses.serialize(loss)
    assert saved["class_name"] == "CategoricalCrossentropy"
    assert keras.losses.deserialize(saved).get_config() == loss.get_config()
