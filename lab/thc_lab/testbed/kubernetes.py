"""A plan as manifests for Kubernetes, in JSON, which kubectl takes as it takes YAML.

Pods use the networks of their nodes: the addresses of a plan are those of NICs. Nodes are called as the hosts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from byteps_thc.errors import ConfigurationError
from byteps_thc.wire.layout import UDP_PORT
from thc_lab.testbed.description import Testbed
from thc_lab.testbed.host_scripts import MAKE_FOLDER, comment
from thc_lab.testbed.kubernetes_pod import FILES, Pods, file_key
from thc_lab.testbed.process import HostSetup, Plan, PlannedProcess
from thc_lab.testbed.sections import Kubernetes, SwitchAggregator

#: They serve until somebody ends them, and are started again when they fail.
_SERVING = ("aggregator", "switch", "agent")

Manifest = dict[str, Any]


def manifests(testbed: Testbed, plan: Plan) -> str:
    """A List of all objects. ConfigurationError for namespaces, and without [kubernetes] image."""
    if testbed.reach == "namespaces":
        raise ConfigurationError('namespaces are on one host: Kubernetes needs reach = "ssh" and nodes as hosts')
    if testbed.kubernetes is None:
        raise ConfigurationError("kubernetes: give its image, with byteps_thc in it: [kubernetes] image = ...")
    return json.dumps(_list(testbed, plan, testbed.kubernetes), indent=1) + "\n"


def _list(testbed: Testbed, plan: Plan, settings: Kubernetes) -> Manifest:
    pods = Pods(testbed, plan, settings)
    items = [_config_map(testbed, plan, settings), _service(testbed, settings)]
    items += [_workload(testbed, pods, process, settings) for process in plan.processes]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _metadata(testbed: Testbed, settings: Kubernetes, name: str, process: str | None = None) -> Manifest:
    return {"name": name, "namespace": settings.namespace, "labels": _labels(testbed, process)}


def _labels(testbed: Testbed, process: str | None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "byteps-thc", "app.kubernetes.io/instance": testbed.name}
    return labels if process is None else labels | {"app.kubernetes.io/component": process}


def _config_map(testbed: Testbed, plan: Plan, settings: Kubernetes) -> Manifest:
    """The plan's files, and for whoever administers the nodes their set-up."""
    files = {file_key(file): file.text for file in plan.files if file.text is not None}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(testbed, settings, FILES.format(testbed.name)),
        "data": files | _setup_scripts(plan),
    }


def _service(testbed: Testbed, settings: Kubernetes) -> Manifest:
    """Headless: names for the pods; traffic goes to the addresses of nodes."""
    aggregator = testbed.aggregator
    first = UDP_PORT if isinstance(aggregator, SwitchAggregator) else aggregator.port
    ports = {f"thc-{thread}" if thread else "thc": first + thread for thread in range(testbed.server_threads)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(testbed, settings, f"thc-{testbed.name}"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(testbed, None),
            "ports": [
                {"name": "rendezvous", "protocol": "TCP", "port": testbed.training.port},
                *({"name": name, "protocol": "UDP", "port": port} for name, port in ports.items()),
            ],
        },
    }


def _workload(testbed: Testbed, pods: Pods, process: PlannedProcess, settings: Kubernetes) -> Manifest:
    labels = _labels(testbed, process.name)
    metadata = _metadata(testbed, settings, f"thc-{testbed.name}-{process.name}", process.name)
    if process.role in _SERVING:
        spec = {
            "serviceName": f"thc-{testbed.name}",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pods.spec(process, restart="Always")},
        }
        return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    spec = {
        "backoffLimit": 0,  # BytePS and torch take no worker back
        "template": {"metadata": {"labels": labels}, "spec": pods.spec(process, restart="Never")},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _setup_scripts(plan: Plan) -> dict[str, str]:
    """Name -> script to be run as root on a node, and one that undoes it: no pod can undo what others rely on."""
    scripts = {}
    for setup in plan.setups:
        scripts[f"set-up.{setup.host}.sh"] = "\n".join(_setup_script(plan, setup)) + "\n"
        undo = [shlex.join(step.undo) for step in reversed(setup.steps) if step.undo]
        if undo:
            scripts[f"undo.{setup.host}.sh"] = "\n".join(["#!/bin/sh", *undo]) + "\n"
    return scripts


def _setup_script(plan: Plan, setup: HostSetup) -> Iterator[str]:
    yield "#!/bin/sh"
    yield "set -e"
    yield f"make_folder={shlex.quote(MAKE_FOLDER)}"
    for file in plan.files:
        if file.host == setup.host and file.text is None:
            yield f'sh -c "$make_folder" sh {shlex.quote(file.path)}'
    for step in setup.steps:
        yield comment(step.what)
        done = f"{shlex.join(step.done)} || " if step.done else ""
        yield f"{done}{shlex.join(step.do)}"
