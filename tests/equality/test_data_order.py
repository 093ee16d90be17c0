"""Each example once in every epoch, in one order on all workers."""

import itertools

import pytest

pytestmark = pytest.mark.distributed

COUNT, BATCH, EPOCHS = 22, 8, 3


def global_batches(results):
    """Puts the workers' shares together: rows by epoch and step."""
    return [
        [
            list(itertools.chain(*(share[epoch][step] for share in results)))
            for step in range(len(results[0][epoch]))
        ]
        for epoch in range(EPOCHS)
    ]


def numbers(batches):
    return [[[row[0] for row in step] for step in epoch] for epoch in batches]


# tests/batches/test_keras_order.py has arrays with a seed.
@pytest.fixture(
    scope="module",
    params=[("arrays", None), ("shuffled", 7), ("shuffled", None)],
    ids=str,
)
def shuffled(request, two_workers):
    data, seed = request.param
    settings = {"data": data, "seed": seed, "count": COUNT, "batch_size": BATCH}
    return settings, two_workers.run("shares_seen", **settings, epochs=EPOCHS)


def test_every_example_once_in_every_epoch_in_an_order_of_its_own(shuffled):
    _, results = shuffled
    epochs = numbers(global_batches(results))
    for epoch in epochs:
        assert [len(step) for step in epoch] == [8, 8, 6]
        assert sorted(itertools.chain(*epoch)) == list(range(COUNT))
    assert len({str(epoch) for epoch in epochs}) == EPOCHS


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
        for epoch in result
        for step in epoch
        for row in step
    ]
    assert len(drawn) == len(set(drawn)) == COUNT * EPOCHS
