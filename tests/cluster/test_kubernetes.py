"""The manifests of examples/clusters, and workers with the variables of their pods."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from kubeflow_trainer_api import models

from tests.cluster.network import NamedHosts

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"
SCRIPT = str(ROOT / "tests" / "cluster" / "scheduled_training.py")
SCHEMAS = {
    "Service": models.IoK8sApiCoreV1Service,
    "Job": models.IoK8sApiBatchV1Job,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}
NODES = ["node-a", "node-b", "node-a", "node-b"]


def documents(name):
    """Returns the objects of a manifest, by kind."""
    text = (CLUSTERS / name).read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def as_text(value):
    """Quantities may be numbers in a manifest."""
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return str(value)


def with_text_limits(value):
    """Quantities must be texts in the models of the API."""
    if isinstance(value, dict):
        return {
            key: as_text(item) if key == "limits" else with_text_limits(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [with_text_limits(item) for item in value]
    return value


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubeflow.yaml"])
def test_manifests_match_the_api_schema(name):
    for kind, document in documents(name).items():
        # It raises for another type, and leaves unknown fields out.
        known = SCHEMAS[kind].from_dict(with_text_limits(document)).to_dict()
        assert as_text(known) == as_text(document)


def test_numbers_and_names_in_manifests_agree():
    plain = documents("kubernetes.yaml")
    job, service = plain["Job"], plain["Service"]
    pod = job["spec"]["template"]["spec"]
    (workers,) = (e["value"] for e in env_of(pod) if e["name"] == "FASTNET_WORKERS")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(workers)
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {
        "batch.kubernetes.io/job-name": job["metadata"]["name"]
    }
    kubeflow = documents("kubeflow.yaml")
    trainer = kubeflow["TrainJob"]["spec"]["trainer"]
    (workers,) = (e["value"] for e in trainer["env"])
    assert trainer["numNodes"] == int(workers)
    reference = kubeflow["TrainJob"]["spec"]["runtimeRef"]["name"]
    assert reference == kubeflow["TrainingRuntime"]["metadata"]["name"]


def env_of(pod):
    return pod["containers"][0]["env"]


def pods(kind):
    """Returns the names and variables of the pods that the cluster would start."""
    if kind == "Job":
        document = documents("kubernetes.yaml")["Job"]
        pod = document["spec"]["template"]["spec"]
        env, name = env_of(pod), document["metadata"]["name"]
        subdomain, count = pod["subdomain"], document["spec"]["completions"]
    else:
        both = documents("kubeflow.yaml")
        template = both["TrainingRuntime"]["spec"]["template"]["spec"]
        (replicated,) = template["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
        job = both["TrainJob"]
        env = [*env_of(pod), *job["spec"]["trainer"]["env"]]
        # JobSet names its Jobs and the headless service in this way.
        subdomain = job["metadata"]["name"]
        name = f"{subdomain}-{replicated['name']}-0"
        count = job["spec"]["trainer"]["numNodes"]
    for index in range(count):
        variables = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"}
        for entry in env:
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            assert field in (None, "spec.nodeName")
            variables[entry["name"]] = NODES[index] if field else entry["value"]
        full = f"{name}-{index}.{subdomain}.default.svc.cluster.local"
        yield f"{full} {name}-{index}", variables


@pytest.mark.distributed
@pytest.mark.clusters
@pytest.mark.parametrize(
    "kind", ["Job", pytest.param("TrainJob", marks=pytest.mark.slow)]
)
def test_pods_find_each_other(tmp_path, kind):
    names, variables = zip(*pods(kind), strict=True)
    try:
        hosts = NamedHosts(names, tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    # What an image has.
    image = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    image |= {f"TF_NUM_{pool}_THREADS": "1" for pool in ("INTRAOP", "INTEROP")}
    logs = [tmp_path / f"{index}.log" for index in range(len(names))]
    command = [sys.executable, SCRIPT, str(tmp_path), "1", "0"]
    started = []
    try:
        for index, own in enumerate(variables):
            started.append(hosts.start(index, command, {**image, **own}, logs[index]))
        codes = [process.wait(240) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
        hosts.remove()
    output = logs[0].read_text()
    assert codes == [0] * len(names), output
    assert "fastnet: 4 workers on 2 hosts, found by a Kubernetes Indexed Job" in output
    assert re.search(r"^ +0 \(node-a\)  2 \(node-a\)$", output, re.M)
    assert re.search(r"^ +1 \(node-b\)  3 \(node-b\)$", output, re.M)
    assert "rank 3 of 4" in logs[3].read_text()
    with (
        np.load(tmp_path / "rank-0.npz") as one,
        np.load(tmp_path / "rank-3.npz") as two,
    ):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
