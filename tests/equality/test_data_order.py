"""Each example once in every epoch, in one order on all workers."""

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.distributed

COUNT, BATCH, EPOCHS = 22, 8, 3


def global_batches(results):
    """Puts the workers' shares together: rows by epoch and step."""
    shares = [result["seen"] for result in results]
    return [
        [
            list(itertools.chain(*(share[epoch][step] for share in shares)))
            for step in range(len(shares[0][epoch]))
        ]
        for epoch in range(EPOCHS)
    ]


def numbers(batches):
    return [[[row[0] for row in step] for step in epoch] for epoch in batches]


@pytest.fixture(scope="module", params=[("arrays", 7), ("arrays", None),
                                        ("shuffled", 7), ("shuffled", None)],
                ids=str)  # fmt: skip
def shuffled(request, two_workers):
    data, seed = request.param
    settings = {"data": data, "seed": seed, "count": COUNT, "batch_size": BATCH}
    return settings, two_workers.run("shares_seen", **settings, epochs=EPOCHS)


def test_every_example_once_in_every_epoch(shuffled):
    _, results = shuffled
    for epoch in numbers(global_batches(results)):
        assert [len(step) for step in epoch] == [8, 8, 6]
        assert sorted(itertools.chain(*epoch)) == list(range(COUNT))


def test_every_epoch_has_an_order_of_its_own(shuffled):
    """Keras repeats that of arrays once `set_random_seed` was called."""
    settings, results = shuffled
    orders = {str(epoch) for epoch in numbers(global_batches(results))}
    repeated = settings["data"] == "arrays" and settings["seed"] is not None
    assert len(orders) == (1 if repeated else EPOCHS)


def test_the_update_is_that_of_one_device_in_this_order(shuffled, one_device):
    _, results = shuffled
    orders = numbers(global_batches(results))
    (one,) = one_device.run("fit_in_order", orders=orders, count=COUNT)
    for result in results:
        for mine, theirs in zip(result["weights"], one["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_seed_gives_the_same_order_again(shuffled, two_workers):
    settings, results = shuffled
    again = two_workers.run("shares_seen", **settings, epochs=EPOCHS)
    same = numbers(global_batches(results)) == numbers(global_batches(again))
    assert same == (settings["seed"] is not None)


@pytest.mark.parametrize("cluster", ["two_workers", "two_by_two"])
def test_augmentation_is_each_workers_own_and_new_in_every_epoch(request, cluster):
    workers = request.getfixturevalue(cluster)
    results = workers.run("shares_seen", data="augmented", count=COUNT)
    drawn = [
        row[1]
        for result in results
        for epoch in result["seen"]
        for step in epoch
        for row in step
    ]
    assert len(drawn) == len(set(drawn)) == COUNT * EPOCHS


def test_seeded_augmentation_is_new_for_each_example_and_repeatable(two_workers):
    def drawn():
        results = two_workers.run("shares_seen", data="augmented", seed=7, count=COUNT)
        # `Dataset.map` repeats its random numbers in every epoch.
        return [
            sorted(row[1] for step in result["seen"][0] for row in step)
            for result in results
        ]

    first = drawn()
    assert len({*itertools.chain(*first)}) == COUNT
    assert drawn() == first
