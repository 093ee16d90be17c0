"""Exclusions of LARS from weight decay and adaptation, and its table of them."""

import pytest
import tensorflow as tf

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.optimizers.exclusions import treatments


def image_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, name="stem"),
            keras.layers.BatchNormalization(name="bn"),
            keras.layers.Flatten(),
            keras.layers.Dense(2, name="head"),
        ],
        name="net",
    )


def attention_model():
    tokens = keras.Input((5, 6))
    x = keras.layers.MultiHeadAttention(2, 3, name="attention")(tokens, tokens)
    x = keras.layers.LayerNormalization(axis=[1, 2], name="norm")(x)
    x = keras.layers.GRU(4, name="gru")(x)
    return keras.Model(tokens, keras.layers.Dense(2, name="head")(x))


def moved_plainly(optimizer, model):
    """Returns the tensors that move by the rate times the gradient, which is 1."""
    variables = model.trainable_variables
    optimizer.build(variables)
    before = [v.numpy().copy() for v in variables]
    optimizer.apply([tf.ones(v.shape) for v in variables])
    rate = float(optimizer.learning_rate)
    return {
        v.path
        for v, start in zip(variables, before, strict=True)
        if abs(v.numpy() - (start - rate)).max() < 1e-5
    }


@pytest.mark.parametrize("make", [image_model, attention_model])
def test_table_agrees_with_updates(make):
    model = make()
    optimizer = LARS(0.5, weight_decay=0.3, momentum=0.0)
    said = {
        row.split()[0]
        for row in optimizer.describe(model).splitlines()[1:-1]
        if " no " in row
    }
    assert moved_plainly(optimizer, model) == said


def test_table_excludes_biases_and_batch_normalization():
    assert LARS().describe(image_model()).splitlines() == [
        "path             shape         decayed  adapted  excluded by",
        "net/stem/kernel  (3, 3, 3, 4)  yes      yes",
        "net/stem/bias    (4,)          no       no       rank 1",
        "net/bn/gamma     (4,)          no       no       rank 1",
        "net/bn/beta      (4,)          no       no       rank 1",
        "net/head/kernel  (144, 2)      yes      yes",
        "net/head/bias    (2,)          no       no       rank 1",
        "6 tensors: 2 decayed, 2 adapted (weight_decay=0.0001)",
    ]


def test_biases_and_scales_of_rank_two_are_excluded_by_name():
    model = attention_model()
    reasons = {
        t.path: t.reason
        for t in treatments(
            model.trainable_variables,
            exclude_biases_and_norms=True,
            exclude_from_weight_decay=None,
            exclude_from_adaptation=None,
        )
    }
    assert reasons["attention/query/bias"] == "named bias"
    assert reasons["attention/query/kernel"] == ""
    assert reasons["norm/gamma"] == "named gamma"
    assert reasons["norm/beta"] == "named beta"
    assert reasons["gru/gru_cell/bias"] == "named bias"
    assert reasons["gru/gru_cell/recurrent_kernel"] == ""
    assert reasons["head/bias"] == "rank 1"


def test_name_of_a_layer_excludes_nothing():
    layer = keras.layers.Dense(2, name="bias")
    layer.build((None, 3))
    assert LARS().describe(layer).splitlines()[1].split()[-2:] == ["yes", "yes"]


def test_describe_takes_tensorflow_variables():
    variables = [tf.Variable([[1.0]], name=name) for name in ("w", "bias")]
    lines = LARS().describe(variables).splitlines()
    assert lines[1].split()[0] == "w:0"
    assert lines[2].endswith("named bias")


def test_patterns_match_any_part_of_the_path():
    model = image_model()
    optimizer = LARS(
        exclude_biases_and_norms=False,
        exclude_from_weight_decay=["bn/", "bias$"],
        exclude_from_adaptation=["head/"],
    )
    by_name = {
        t.path.removeprefix("net/"): (t.decayed, t.adapted)
        for t in optimizer._exclusions.decide(model.trainable_variables)
    }
    assert by_name == {
        "stem/kernel": (True, True),
        "stem/bias": (False, True),
        "bn/gamma": (False, True),
        "bn/beta": (False, True),
        "head/kernel": (True, False),
        "head/bias": (False, False),
    }


def test_pattern_without_a_match_raises():
    model = image_model()
    optimizer = LARS(exclude_from_adaptation=["head", "batch_normalization"])
    message = "'batch_normalization', which matches none of the 6 paths"
    with pytest.raises(ValueError, match=message):
        optimizer.build(model.trainable_variables)
    assert not optimizer.built
    with pytest.raises(ValueError, match=message):
        optimizer.describe(model)
    model.compile(LARS(exclude_from_weight_decay=["nowhere"]), "mse")
    with pytest.raises(ValueError, match="`exclude_from_weight_decay` must match"):
        model.fit(tf.zeros((2, 8, 8, 3)), tf.zeros((2, 2)), verbose=0)


def test_describe_without_decay_and_after_build():
    model = image_model()
    optimizer = LARS(weight_decay=0.0)
    with pytest.raises(ValueError, match="needs an optimizer that is built"):
        optimizer.describe()
    optimizer.build(model.trainable_variables)
    assert optimizer.describe() == optimizer.describe(model)
    assert "0 decayed, 2 adapted (weight_decay=0)" in optimizer.describe()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("bias", TypeError, "Put a single pattern into a list"),
        ([3], TypeError, "must be a list of regular expressions"),
        (["("], ValueError, "valid regular expressions"),
    ],
)
@pytest.mark.parametrize(
    "argument", ["exclude_from_weight_decay", "exclude_from_adaptation"]
)
def test_invalid_exclusions_raise(argument, value, error, message):
    with pytest.raises(error, match=f"`{argument}`.*{message}"):
        LARS(**{argument: value})


def test_exclude_from_weight_decay_method_raises():
    with pytest.raises(NotImplementedError, match="constructor arguments"):
        LARS().exclude_from_weight_decay(var_names=["bias"])


def decisions(optimizer):
    return [(t.shape, t.decayed, t.adapted, t.reason) for t in optimizer._treatments]


@pytest.mark.parametrize(
    "exclusion",
    [None, ["head/", "(stem|query)/kernel"], ["^net/stem|head"]],
    ids=["none", "patterns", "model's name"],
)
@pytest.mark.parametrize("make", [image_model, attention_model])
def test_saving_keeps_treatments(tmp_path, make, exclusion):
    model = make()
    optimizer = LARS(
        exclude_from_adaptation=exclusion, exclude_from_weight_decay=exclusion
    )
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert decisions(loaded.optimizer) == decisions(optimizer)
    if exclusion is not None:
        assert optimizer.describe() != LARS().describe(model)
    assert loaded.optimizer.get_config() == optimizer.get_config()


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_saving_before_build_keeps_patterns(tmp_path):
    model = image_model()
    model.compile(LARS(exclude_from_adaptation=["head"]), "mse")
    assert not model.optimizer.built
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.optimizer.build(loaded.trainable_variables)
    model.optimizer.build(model.trainable_variables)
    assert decisions(loaded.optimizer) == decisions(model.optimizer)


def test_copy_for_another_model_matches_patterns_again():
    optimizer = LARS(exclude_from_adaptation=["head"])
    optimizer.build(image_model().trainable_variables)
    copy = LARS.from_config(optimizer.get_config())
    model = attention_model()
    assert copy.describe(model) == LARS(exclude_from_adaptation=["head"]).describe(
        model
    )


def test_edited_configuration_matches_patterns_again():
    model = image_model()
    optimizer = LARS(exclude_from_adaptation=["head"])
    optimizer.build(model.trainable_variables)
    config = {**optimizer.get_config(), "exclude_from_adaptation": ["stem"]}
    assert LARS.from_config(config).describe(model) == LARS(
        exclude_from_adaptation=["stem"]
    ).describe(model)
