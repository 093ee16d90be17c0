"""Ranks and addresses of the pods of a Kubernetes Indexed Job."""

from collections.abc import Mapping

from keras_fastnet.cluster.variables import ProcessRank, integer_variable
from keras_fastnet.errors import ClusterError

_INDEX = "JOB_COMPLETION_INDEX"
_WORKERS = "FASTNET_WORKERS"
# All pods can use the same port: each has its own IP address.
_PORT = 20_000


def kubernetes_rank(environment: Mapping[str, str]) -> ProcessRank | None:
    """Returns a pod's rank; `None` outside an Indexed Job of several workers.

    Kubernetes tells a pod its index, but not the number of pods.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: If `FASTNET_WORKERS` is not a number, or not above the index.
    """
    index = environment.get(_INDEX, "")
    size = integer_variable(environment, _WORKERS, 1 << 20, 4)
    if not index.isdecimal() or size is None or size == 1:
        return None
    if int(index) >= size:
        raise ClusterError(
            f"{_WORKERS} must be the Job's `completions` and `parallelism`. Received: "
            f"{size}, in the pod with {_INDEX}={index}. Make the three numbers equal."
        )
    return ProcessRank("a Kubernetes Indexed Job", int(index), size)


def check_workers_are_counted(environment: Mapping[str, str]) -> None:
    """Checks that an Indexed Job says whether its pods train together.

    Args:
        environment: The environment variables of a process without a cluster.

    Raises:
        ClusterError: If it does not.
    """
    if _INDEX in environment and _WORKERS not in environment:
        raise ClusterError(
            "The pods of an Indexed Job must be told how many they are. Received: "
            f"{_INDEX}={environment[_INDEX]} without {_WORKERS}. Set it in the pod's "
            "`env` to the Job's `completions`, or to 1 if every pod trains alone."
        )


def kubernetes_addresses(
    environment: Mapping[str, str], own: ProcessRank, name: str
) -> list[str]:
    """Returns `host:port` of a Job's pods, by rank.

    Args:
        environment: The environment variables of a pod.
        own: The pod's rank.
        name: Its full name in the network, `JOB-INDEX.SERVICE.NAMESPACE.svc…`.

    Raises:
        ClusterError: If `name` is not such a name.
    """
    host, _, domain = name.partition(".")
    job, _, index = host.rpartition("-")
    if not job or index != str(own.rank) or not domain:
        raise ClusterError(
            "The pods of an Indexed Job must reach each other by name: "
            f"JOB-{own.rank}.SERVICE.NAMESPACE.svc.… Received: {name!r}. Set "
            "`subdomain` in the pod's template to the name of a headless Service "
            "(`clusterIP: None`) that selects the pods, and leave `hostname` out."
        )
    port = integer_variable(environment, "FASTNET_PORT", 65_535, _PORT) or _PORT
    return [f"{job}-{rank}.{domain}:{port}" for rank in range(own.size)]
