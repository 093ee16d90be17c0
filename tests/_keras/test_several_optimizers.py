"""An optimizer for each layer, which Keras 3 has."""

from tests.equality.comparing import assert_equal


def test_an_optimizer_for_each_layer(one_device, two_workers):
    (one,) = one_device.run("fit_several_optimizers")
    del one["printed"]
    found = two_workers.run("fit_several_optimizers")
    assert "learning rate 0.01; learning rate 0.1" in found[0].pop("printed")
    found[1].pop("printed")
    assert_equal([one], found)
