"""Losses of every kind: N workers equal one device."""

import pytest

from tests.equality.test_parity import assert_parity

pytestmark = pytest.mark.distributed


KINDS = [
    "masked",
    "mean_with_sample_weight",
    "weighted",
    "sum",
    "unreduced",
    "scalar",
    "scalar_sum",
    "added",
    "added_by_example",
    "penalty",
    "activity",
]


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [
        *(("two_workers", kind) for kind in KINDS),
        ("two_by_two", "masked"),
    ],
)
def test_losses(request, one_device, cluster, kind):
    workers = request.getfixturevalue(cluster)
    assert_parity(
        one_device.run("fit_loss", kind=kind), workers.run("fit_loss", kind=kind)
    )
