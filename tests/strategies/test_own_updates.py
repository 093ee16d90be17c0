"""Steps that use a replica's own gradients for other things than an update."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("kind", ["by hand", "sharpness-aware"])
@pytest.mark.parametrize("cluster", ["two_workers", "one_by_two"])
def test_other_values_for_a_weight_are_refused(request, cluster, kind):
    workers = request.getfixturevalue(cluster)
    for result in workers.run("fit_own_updates", kind=kind, reduced=False):
        assert "dense" in result["error"] and "all_reduce" in result["error"]


def test_gradients_in_variables_are_named(two_workers):
    chief, other = two_workers.run("fit_own_updates", kind="added up", reduced=False)
    assert chief["printed"].count("adds up in variables") == 1
    assert "adds up" not in other["printed"]
