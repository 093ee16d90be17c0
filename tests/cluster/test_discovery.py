"""Clusters are read from the variables of Slurm, Kubernetes and MPI."""

import pytest
import tensorflow as tf

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.discovery import resolver_of
from keras_fastnet.cluster.environment import scheduler_ranks, who_started
from keras_fastnet.cluster.kubernetes import (
    check_workers_are_counted,
    kubernetes_addresses,
    kubernetes_rank,
)
from keras_fastnet.cluster.slurm import (
    slurm_addresses,
    slurm_rank,
    tasks_without_step,
)
from keras_fastnet.cluster.variables import ProcessRank
from keras_fastnet.errors import ClusterError

# As Slurm 22.05 gave them to the last of four tasks.
STEP = {
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "fast[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
}
# In an sbatch script.
BATCH = {"SLURM_JOB_ID": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
POD = {"JOB_COMPLETION_INDEX": "1", "FASTNET_WORKERS": "3"}


def step(hosts, counts, nodes=(), rank=0, **more):
    """Returns the variables of a task of a Slurm step, of whose tasks `nodes` tells."""
    node = nodes[rank] if nodes else 0
    return {
        **STEP,
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(nodes[:rank].count(node) if nodes else 0),
        "SLURM_STEP_NUM_TASKS": str(len(nodes) or 2),
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        **{f"SLURM_{name}": str(text) for name, text in more.items()},
    }


def hosts_in(environment):
    addresses = slurm_addresses(environment, slurm_rank(environment))
    return [address.split(":")[0] for address in addresses]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[08-10,2],m5", ["n08", "n09", "n10", "n2", "m5"]),
        ("r[1-2]n[3-4]-ib", ["r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"]),
    ],
)
def test_slurm_host_lists_are_expanded(text, hosts):
    nodes = list(range(len(hosts)))
    assert hosts_in(step(text, f"1(x{len(hosts)})", nodes)) == hosts


@pytest.mark.parametrize(
    ("hosts", "counts"),
    [
        *(
            (hosts, "2")
            for hosts in ("", "n[1-", "n[2-1]", "n[a-b]", "n1,,n2", "n[1]]")
        ),
        *(("n1", counts) for counts in ("", "a", "2(x", "2,", "2(x999999999)")),
    ],
)
def test_malformed_slurm_lists_raise(hosts, counts):
    with pytest.raises(ClusterError, match=r"Received: "):
        hosts_in(step(hosts, counts))


@pytest.mark.parametrize(
    ("counts", "distribution", "plane", "nodes"),
    [
        ("3,1", "", "", [0, 0, 0, 1]),
        ("3,1", "cyclic", "", [0, 1, 0, 0]),
        ("4(x2)", "plane", "2", [0, 0, 1, 1, 0, 0, 1, 1]),
        ("2(x2)", "cyclic:block", "", [0, 1, 0, 1]),
        ("2(x2)", "block:cyclic,NoPack", "", [0, 0, 1, 1]),
    ],
)
def test_slurm_tasks_are_assigned_to_nodes(counts, distribution, plane, nodes):
    known = set()
    for rank in range(len(nodes)):
        more = {"DISTRIBUTION": distribution, "DIST_PLANESIZE": plane}
        environment = step("n[1-2]", counts, nodes, rank, **more)
        assert hosts_in(environment) == [f"n{node + 1}" for node in nodes]
        known.add(tuple(slurm_addresses(environment, slurm_rank(environment))))
    # All compute the same addresses, and each has its own.
    assert len(known) == 1
    assert len(set(*known)) == len(nodes)


def test_slurm_step_gives_rank_and_addresses():
    place = slurm_rank(STEP)
    assert place == ProcessRank("Slurm (job 2, step 0)", 3, 4)
    assert slurm_addresses(STEP, place) == [
        *("fast1:20128", "fast1:20129", "fast1:20130", "fast2:20128"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "arbitrary.*srun --dist"),
        ({"SLURM_DISTRIBUTION": "plane"}, "plane.*srun --dist"),
        ({"SLURM_DISTRIBUTION": "cyclic"}, "task 0 of node 1.*is task 2 of node 0"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "=5, but 4 tasks"),
        ({"SLURM_STEP_NODELIST": "fast1"}, "1 hosts for 2"),
    ],
)
def test_contradictory_slurm_variables_raise(changes, message):
    environment = {**STEP, **changes}
    with pytest.raises(ClusterError, match=message):
        slurm_addresses(environment, slurm_rank(environment))


def ports(number, step_number=0, tasks=64):
    """Returns the ports that a job's step with so many tasks on a node has."""
    environment = step("n1", str(tasks), [0] * tasks)
    environment |= {"SLURM_JOB_ID": str(number), "SLURM_STEP_ID": str(step_number)}
    addresses = slurm_addresses(environment, slurm_rank(environment))
    return [int(address.split(":")[1]) for address in addresses]


def test_consecutive_slurm_jobs_have_different_ports():
    neighbours = [set(ports(1000 + number)) for number in range(199)]
    steps = [*neighbours[:50], set(ports(1000, 1)), set(ports(1010, 1))]
    for jobs in (neighbours, steps):
        assert sum(map(len, jobs)) == len(set().union(*jobs))
    assert min(map(min, neighbours)) == 20_000
    assert max(map(max, neighbours)) < 32_768


def test_ports_of_the_user_take_precedence():
    environment = {**STEP, "FASTNET_PORT": "7000"}
    assert slurm_addresses(environment, slurm_rank(STEP))[2] == "fast1:7002"
    # As Kubernetes sets it for a Service with the name `fastnet`.
    environment = {**STEP, "FASTNET_PORT": "tcp://10.0.0.1:80"}
    assert slurm_addresses(environment, slurm_rank(STEP))[2] == "fast1:20130"


@pytest.mark.parametrize("text", ["", "http", "0", "-1", "65535"])
def test_malformed_fastnet_port_raises(text):
    with pytest.raises(ClusterError, match=r"FASTNET_PORT must be .*1 to 65533"):
        slurm_addresses({**STEP, "FASTNET_PORT": text}, slurm_rank(STEP))


def test_pod_of_an_indexed_job_gives_rank_and_addresses():
    place = kubernetes_rank(POD)
    assert place == ProcessRank("a Kubernetes Indexed Job", 1, 3)
    domain = "workers.default.svc.cluster.local"
    assert kubernetes_addresses(POD, place, f"train-1.{domain}") == [
        f"train-{rank}.{domain}:20000" for rank in range(3)
    ]
    # A TrainJob's, as JobSet names its pods.
    pod = {**POD, "FASTNET_PORT": "8000"}
    addresses = kubernetes_addresses(pod, place, "digits-node-0-1.digits")
    assert addresses[2] == "digits-node-0-2.digits:8000"


@pytest.mark.parametrize("name", ["train-1", "train-2.workers", "train.workers", ""])
def test_pods_without_a_subdomain_raise(name):
    with pytest.raises(ClusterError, match=r"Received: .*`subdomain`"):
        kubernetes_addresses(POD, kubernetes_rank(POD), name)


def test_indexed_job_without_a_number_of_workers_raises():
    alone = {**POD, "JOB_COMPLETION_INDEX": "0", "FASTNET_WORKERS": "1"}
    for environment in ({}, alone, {"FASTNET_WORKERS": "3"}):
        assert kubernetes_rank(environment) is None
        check_workers_are_counted(environment)
    with pytest.raises(ClusterError, match=r"INDEX=1 without FASTNET_WORKERS.*or to 1"):
        check_workers_are_counted({"JOB_COMPLETION_INDEX": "1"})
    with pytest.raises(ClusterError, match=r"Received: 3, in the pod with .*INDEX=3"):
        kubernetes_rank({**POD, "JOB_COMPLETION_INDEX": "3"})


def test_inherited_scheduler_variables_are_ignored():
    assert [place.rank for place in scheduler_ranks({**STEP, **POD})] == [3, 1]
    # Those of Ray's daemon.
    assert not scheduler_ranks({**STEP, **POD, "RAY_RAYLET_PID": "7"})
    # `mpiexec` has started its daemons by `srun`.
    assert not scheduler_ranks({**STEP, "PMI_RANK": "1", "PMI_SIZE": "8"})
    # `srun --mpi=pmi2` has started the ranks themselves.
    assert scheduler_ranks({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (BATCH, None),
        # As in an interactive `srun --pty bash`.
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI"),
        (STEP, "Slurm (job 2, step 0)"),
        (POD, "a Kubernetes Indexed Job"),
    ],
    ids=str,
)
def test_who_started(variables, expected):
    assert who_started(variables) == expected


def test_tasks_of_a_batch_script_are_counted_outside_a_step():
    assert tasks_without_step(BATCH) == 4
    assert tasks_without_step(STEP) == 0


def test_resolver_states_the_number_of_gpus(monkeypatch):
    """TensorFlow uses as many GPUs as the resolver states."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind, kind])
    resolver = resolver_of(Cluster(("a:1", "b:1"), 1))
    assert resolver.num_accelerators() == {"GPU": 2}
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
