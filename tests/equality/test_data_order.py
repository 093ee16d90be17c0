"""Each example once in every epoch, in one order on all workers."""

import itertools

import pytest

pytestmark = pytest.mark.distributed

COUNT, EPOCHS = 22, 3


def numbers(results):
    """Returns the examples of global batches, by epoch and step."""
    return [
        [
            [row[0] for share in step for row in share]
            for step in zip(*epoch, strict=True)
        ]
        for epoch in zip(*results, strict=True)
    ]


# tests/batches/test_keras_order.py has arrays with a seed.
@pytest.fixture(
    scope="module",
    params=[("arrays", None), ("shuffled", 7), ("shuffled", None)],
    ids=str,
)
def shuffled(request, two_workers):
    settings = dict(zip(("data", "seed"), request.param, strict=True))
    return settings, two_workers.run("shares_seen", **settings)


def test_every_example_once_in_every_epoch_in_an_order_of_its_own(shuffled):
    _, results = shuffled
    epochs = numbers(results)
    assert len(epochs) == EPOCHS
    for epoch in epochs:
        assert [len(step) for step in epoch] == [8, 8, 6]
        assert sorted(itertools.chain(*epoch)) == list(range(COUNT))
    assert len({str(epoch) for epoch in epochs}) == EPOCHS


def test_a_seed_gives_the_same_order_again(shuffled, two_workers):
    settings, results = shuffled
    again = two_workers.run("shares_seen", **settings)
    same = numbers(results) == numbers(again)
    assert same == (settings["seed"] is not None)


@pytest.mark.parametrize("cluster", ["two_workers", "two_by_two"])
def test_augmentation_is_each_workers_own_and_new_in_every_epoch(request, cluster):
    results = request.getfixturevalue(cluster).run("shares_seen", data="augmented")
    steps = [step for result in results for epoch in result for step in epoch]
    drawn = [row[1] for step in steps for row in step]
    assert len(drawn) == len(set(drawn)) == COUNT * EPOCHS
