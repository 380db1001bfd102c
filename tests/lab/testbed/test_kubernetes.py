"""Kubernetes manifests: the fields that each kind of object needs, because there is no cluster here."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testbed_plans import CASES, description, objects

from thc_lab.testbed.kubernetes import manifests
from thc_lab.testbed.plan import plan

NAMES = [name for name, format in CASES if format == "kubernetes.json"]
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
API_VERSIONS = {"ConfigMap": "v1", "Service": "v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}


def of_kind(name: str, *kinds: str) -> list[dict[str, Any]]:
    return [item for item in objects(name) if item["kind"] in kinds]


def pod_of(item: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = item["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", NAMES)
def test_every_object_has_a_kind_and_a_name(name: str) -> None:
    testbed = description(name)
    assert testbed.kubernetes is not None
    seen = set()
    for item in of_kind(name, *API_VERSIONS):
        metadata = item["metadata"]
        assert item["apiVersion"] == API_VERSIONS[item["kind"]]
        assert DNS_LABEL.fullmatch(metadata["name"])
        assert metadata["namespace"] == testbed.kubernetes.namespace
        seen.add((item["kind"], metadata["name"]))
    assert len(seen) == len(objects(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_process_is_a_pod_on_its_node(name: str) -> None:
    planned = plan(description(name))
    items = of_kind(name, "StatefulSet", "Job")
    assert len(items) == len(planned.processes)
    for item, process in zip(items, planned.processes, strict=True):
        pod = pod_of(item)
        [container] = pod["containers"]
        assert pod["nodeSelector"] == {"kubernetes.io/hostname": process.host}
        assert pod["hostNetwork"] is True
        assert container["command"] == list(process.argv)
        assert container["image"]
        variables = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        references = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in container["env"] if "value" not in v}
        secret = f"thc-{planned.name}-environment"
        assert references == {name: {"name": secret, "key": name} for name in process.private}
        # The pod's GPUs are named by the device plugin, and numbered from 0 on.
        other = {"THC_TIMEOUTS", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
        assert variables.items() >= {n: v for n, v in process.environment.items() if n not in other}.items()
        gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        if "CUDA_VISIBLE_DEVICES" in variables:
            assert variables["CUDA_VISIBLE_DEVICES"] == ",".join(str(gpu) for gpu in range(gpus))
        asks_for_gpus = "nvidia.com/gpu" in container["resources"]["limits"]
        assert not (asks_for_gpus and "NVIDIA_VISIBLE_DEVICES" in variables)
        if "BYTEPS_SOCKET_PATH" in variables:
            assert variables["BYTEPS_SOCKET_PATH"] in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert ("connect_s=" in variables.get("THC_TIMEOUTS", "")) == (process.role == "worker")
        serves = process.role in ("aggregator", "switch", "agent")
        assert item["kind"] == ("StatefulSet" if serves else "Job")
        assert pod["restartPolicy"] == ("Always" if serves else "Never")


@pytest.mark.parametrize("name", NAMES)
def test_labels_lead_to_pods(name: str) -> None:
    [service] = of_kind(name, "Service")
    assert service["spec"]["clusterIP"] == "None"
    for item in of_kind(name, "StatefulSet", "Job"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        if item["kind"] == "StatefulSet":
            assert item["spec"]["selector"]["matchLabels"] == labels
            assert item["spec"]["serviceName"] == service["metadata"]["name"]


@pytest.mark.parametrize("name", NAMES)
def test_mounts_are_of_volumes_and_volumes_of_objects(name: str) -> None:
    [files] = of_kind(name, "ConfigMap")
    for item in of_kind(name, "StatefulSet", "Job"):
        pod = pod_of(item)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = pod["containers"][0]["volumeMounts"]
        assert sorted(mount["name"] for mount in mounts) == sorted(volumes)
        for mount in mounts:
            if "configMap" in volumes[mount["name"]]:
                assert volumes[mount["name"]]["configMap"]["name"] == files["metadata"]["name"]
                assert mount["subPath"] in files["data"]
            if "secret" in volumes[mount["name"]]:
                assert mount["mountPath"] == description(name).job.key_file


@pytest.mark.parametrize(
    ("name", "pages", "gpus"), [("dpdk_switch", {"hugepages-1Gi": "2048Mi"}, "4"), ("torchrun", {}, "2")]
)
def test_resources(name: str, pages: dict[str, str], gpus: str) -> None:
    for item in of_kind(name, "Job"):
        resources = pod_of(item)["containers"][0]["resources"]
        if not item["metadata"]["name"].rpartition("-")[2].startswith("worker"):
            assert resources["limits"] == {}
            continue
        assert resources["limits"] == {"nvidia.com/gpu": gpus} | pages
        # Kubernetes refuses huge pages without processor or memory, and requests that differ from limits.
        assert resources["requests"] == {"cpu": "1"} | resources["limits"]


def test_nodes_are_set_up_by_scripts_that_can_be_undone() -> None:
    [files] = of_kind("dpdk_switch", "ConfigMap")
    scripts = {name: text for name, text in files["data"].items() if name.endswith(".sh")}
    assert scripts.keys() == {"set-up.gpu0.sh", "undo.gpu0.sh", "set-up.gpu1.sh", "undo.gpu1.sh"}
    assert not [name for name, text in scripts.items() if "jobs.json" in text]  # which is in pods only


def test_kubernetes_replaces_nothing() -> None:
    testbed = description("torchrun")
    command = ("sh", "-c", "echo $(HOME) $HOME")
    training = testbed.training.model_copy(update={"command": command, "environment": {"WORDS": "$(HOME)"}})
    changed = testbed.model_copy(update={"training": training})
    items = json.loads(manifests(changed, plan(changed)))["items"]
    [container] = pod_of(items[-1])["containers"]
    assert container["command"][-1] == "echo $$(HOME) $$HOME"
    # A reference is taken as it is.
    reference = {"secretKeyRef": {"name": "thc-ddp-environment", "key": "WORDS"}}
    assert {"name": "WORDS", "valueFrom": reference} in container["env"]
