"""GPU support, as far as it can be tested without a GPU."""

import pytest

from keras_fastnet.cluster.gpus import mpi_process_gpus
from keras_fastnet.errors import ClusterError


@pytest.mark.distributed
@pytest.mark.parametrize("grid", [(2, 2), (1, 4), (4, 1)], ids=str)
def test_nccl_collectives_use_the_groups_of_the_grid(two_by_two, grid):
    rows, columns = grid
    of_device = {}
    for found in two_by_two.run("collectives_for_gpus", grid=grid):
        of_device.update(found)
    assert len(of_device) == 4
    row_of, column_of = {}, {}
    for device, collectives in of_device.items():
        kinds = [kind for kind, *_ in collectives]
        expected = ["CollectiveReduceScatterV2"] if columns > 1 else []
        expected += ["CollectiveReduceV2"] if rows > 1 else []
        expected += ["CollectiveGatherV2"] if columns > 1 else []
        assert kinds == expected
        assert {hint for *_, hint in collectives} == {"nccl"}
        for kind, key, size, _ in collectives:
            along_column = kind == "CollectiveReduceV2"
            assert size == (rows if along_column else columns)
            groups = column_of if along_column else row_of
            assert groups.setdefault(device, key) == key
    for groups, members in ((row_of, columns), (column_of, rows)):
        for key in groups.values():
            assert list(groups.values()).count(key) == members
    if grid == (2, 2):
        # A row and a column have one device in common.
        assert len(set(zip(row_of.values(), column_of.values(), strict=True))) == 4


@pytest.mark.distributed
def test_half_precision_is_summed_in_float32_on_gpus(two_by_two):
    for found in two_by_two.run("collectives_for_gpus", grid=(2, 2), dtype="bfloat16"):
        for collectives in found.values():
            kinds = [kind for kind, *_ in collectives]
            # NCCL would round after each addition.
            assert "CollectiveReduceScatterV2" not in kinds
            assert "CollectiveReduceV2" not in kinds


@pytest.mark.parametrize(
    ("seen", "blocks"),
    [
        ([(None, 4)] * 4, [[0], [1], [2], [3]]),
        ([("0,1,2,3", 4)] * 2, [[0, 1], [2, 3]]),
        # Each was given its own.
        ([("0", 1), ("1", 1)], [[0], [0]]),
        ([("0,1", 2), ("2,3", 2), ("0,1", 2)], [[0], [0, 1], [1]]),
        ([(None, 0)] * 3, [[], [], []]),
    ],
)
def test_processes_of_a_host_divide_its_gpus(seen, blocks):
    for place, block in enumerate(blocks):
        gpus = list(range(seen[place][1]))
        assert gpus[mpi_process_gpus(seen, place)] == block


def test_indivisible_gpus_raise():
    with pytest.raises(ClusterError, match=r"3 GPUs.*2 processes"):
        mpi_process_gpus([(None, 3)] * 2, 0)
