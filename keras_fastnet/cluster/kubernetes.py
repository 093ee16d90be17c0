"""The pods of a Kubernetes Indexed Job with a headless service."""

from collections.abc import Mapping

from keras_fastnet.cluster.numbers import number_in
from keras_fastnet.cluster.place import Place
from keras_fastnet.errors import ClusterError

INDEX = "JOB_COMPLETION_INDEX"
WORKERS = "FASTNET_WORKERS"
# Every pod has an address of its own.
_PORT = 20_000


def kubernetes_place(environment: Mapping[str, str]) -> Place | None:
    """Returns a pod's place; `None` outside of an Indexed Job of several workers.

    Kubernetes tells a pod its index, but not how many there are.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: `FASTNET_WORKERS` is no number, or not above the index.
    """
    index = environment.get(INDEX, "")
    size = number_in(environment, WORKERS, 1, 1 << 20, 4)
    if not index.isdecimal() or size is None or size == 1:
        return None
    if int(index) >= size:
        raise ClusterError(
            f"{WORKERS} must be the Job's `completions` and `parallelism`. Received: "
            f"{size}, in the pod with {INDEX}={index}. Make the three numbers equal."
        )
    return Place("a Kubernetes Indexed Job", int(index), size)


def check_workers_are_counted(environment: Mapping[str, str]) -> None:
    """Refuses an Indexed Job that does not say whether its pods train together.

    Args:
        environment: The environment variables of a process without a cluster.

    Raises:
        ClusterError: It does not.
    """
    if INDEX in environment and WORKERS not in environment:
        raise ClusterError(
            f"The pods of an Indexed Job must be told how many they are. Received: "
            f"{INDEX}={environment[INDEX]} without {WORKERS}. Set it in the pod's "
            "`env` to the Job's `completions`, or to 1 where every pod trains alone."
        )


def kubernetes_addresses(
    environment: Mapping[str, str], place: Place, name: str
) -> list[str]:
    """Returns `host:port` of a Job's pods, by rank.

    Args:
        environment: The environment variables of a pod.
        place: The pod's place.
        name: Its full name in the network, `JOB-INDEX.SERVICE.NAMESPACE.svc…`.

    Raises:
        ClusterError: The name is no such name.
    """
    own, _, domain = name.partition(".")
    job, _, index = own.rpartition("-")
    if not job or index != str(place.rank) or not domain:
        raise ClusterError(
            "The pods of an Indexed Job must reach each other by name: "
            f"JOB-{place.rank}.SERVICE.NAMESPACE.svc.… Received: {name!r}. Set "
            "`subdomain` in the pod's template to the name of a headless Service "
            "(`clusterIP: None`) that selects the pods, and leave `hostname` out."
        )
    port = number_in(environment, "FASTNET_PORT", 1, 65_535, _PORT) or _PORT
    return [f"{job}-{rank}.{domain}:{port}" for rank in range(place.size)]
