"""TPUStrategy takes the same updates as one device, on a TPU whose cores are CPUs."""

import numpy as np
import pytest

from keras_fastnet import TPUStrategy
from keras_fastnet.errors import ClusterError
from tests.distributed.tpu_of_cpus import Resolver
from tests.equality.comparing import assert_equal
from tests.equality.ways import EMA
from tests.image_record_files import write_split

pytestmark = pytest.mark.distributed

BEFORE_LANDING = [
    ("fit", {"optimizer": "lars"}),
    # A last batch of 6 examples, of which three cores have two.
    ("fit", {"count": 70}),
    ("fit_own_steps", {"kind": "method"}),
]
BEFORE_A_RELEASE = [
    # A last batch with fewer examples than cores.
    ("fit", {"optimizer": "adam", "count": 33}),
    ("fit", {"normalization": "synchronized"}),
    ("fit", {"accumulation_steps": 2, "count": 103, "batch_size": 13}),
    ("fit_structures", {"count": 64}),
    ("fit", {"optimizer_options": {"global_clipnorm": 1e-2}}),
    ("fit", {"optimizer_options": {"gradient_accumulation_steps": 3}}),
    ("fit", {"optimizer_options": EMA}),
    # A program of static shapes is made for each size of a batch.
    (
        "fit",
        {
            "compile_options": {"steps_per_execution": 2},
            "accumulation_steps": 1,
            "count": 70,
        },
    ),
    (
        "fit",
        {"data": "generator", "count": 72, "fit_options": {"steps_per_epoch": 3}},
    ),
    ("fit_loss", {"kind": "masked"}),
    ("on_batch", {"count": 32}),
]


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        *BEFORE_LANDING,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in BEFORE_A_RELEASE),
    ],
    ids=str,
)
def test_equals_one_device(one_device, tpu, job, settings):
    assert_equal(one_device.run(job, **settings), tpu.run(job, **settings))


@pytest.mark.slow
def test_batch_growth_on_cores(one_device, tpu):
    # Other sums: one of the units is at its kink then.
    grown = tpu.run("fit_growing")
    assert_equal(one_device.run("fit_growing"), grown, rtol=1e-3, atol=1e-3)
    assert grown[0]["iterations"] == 5 + 3 + 2


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, 2])
def test_overflow_on_one_core_skips_the_update_on_all(tpu, steps):
    (result,) = tpu.run("overflow", accumulation_steps=steps)
    for before, after in zip(result["before"], result["after"], strict=True):
        np.testing.assert_array_equal(before, after)
    assert (result["scale"], result["updates"]) == (2.0**14, 0)


@pytest.mark.slow
def test_dropout_differs_between_cores(one_by_two, tpu):
    (masks,) = tpu.run("dropout_masks", seed=1)
    drawn = masks.reshape(-1, masks.shape[-1])
    assert len(np.unique(drawn, axis=0)) == len(drawn) == 2 * 4
    (other,) = one_by_two.run("dropout_masks", seed=1)
    np.testing.assert_array_equal(masks[:, :2], other)


@pytest.mark.slow
def test_image_records(tmp_path, one_device, tpu):
    # 19 on 4 cores: steps of 8, 8 and 3; evaluation likewise.
    settings = {"folder": str(write_split(tmp_path, [12, 7])), "classes": 19}
    one = one_device.run("fit_records", **settings)
    assert_equal(one, tpu.run("fit_records", **settings))


@pytest.mark.slow
def test_batch_growth_is_one_static_program_without_host_transfers(tpu):
    (programs,) = tpu.run("tpu_programs")
    assert len(programs) == 1
    (program,) = programs
    assert program["cross-replica sums"] > 0
    assert program["not static"] == []
    assert program["not in XLA"] == []


def test_a_name_as_resolver_raises_type_error():
    with pytest.raises(TypeError, match="Received: 'local'"):
        TPUStrategy("local")


def test_several_hosts_raise_cluster_error():
    with pytest.raises(ClusterError, match="Received: a TPU system of 2 hosts"):
        TPUStrategy(Resolver(4, hosts=2))
