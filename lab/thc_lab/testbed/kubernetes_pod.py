"""The pod of one process: its node, container, memory and devices."""

from __future__ import annotations

from typing import Any

from thc_lab.testbed.description import Testbed, Worker, assign_workers
from thc_lab.testbed.process import Plan, PlannedFile, PlannedProcess
from thc_lab.testbed.sections import Dpdk, Kubernetes

#: Names of the ConfigMap with the plan's files, of the Secret whose item "key" is the job's key, and of that which has
#: the values of the workers' variables.
FILES, KEY, ENVIRONMENT = "thc-{}-files", "thc-{}-key", "thc-{}-environment"
#: Pods start in any order, so a worker asks for the aggregator until it is there.
CONNECT_TIMEOUT_S = 300
_PAGES = {"2M": ("hugepages-2Mi", "HugePages-2Mi", 2), "1G": ("hugepages-1Gi", "HugePages-1Gi", 1024)}

Manifest = dict[str, Any]


def _literal(text: str) -> str:
    """Text in which Kubernetes replaces nothing: it reads $(NAME) as a variable, and $$ as $."""
    return text.replace("$", "$$")


def file_key(file: PlannedFile) -> str:
    """Name of a file in the ConfigMap."""
    return file.path.rpartition("/")[2]


class Pods:
    """Makes the specifications of pods."""

    def __init__(self, testbed: Testbed, plan: Plan, settings: Kubernetes) -> None:
        self._testbed = testbed
        self._plan = plan
        self._settings = settings
        self._workers = assign_workers(testbed)

    def spec(self, process: PlannedProcess, restart: str) -> Manifest:
        """Return the specification of a process's pod."""
        volumes = self._volumes(process)
        container: Manifest = {
            "name": process.role,
            "image": self._settings.image,
            "command": [_literal(word) for word in process.argv],
            "env": self._variables(process),
            "resources": self._resources(process),
            "volumeMounts": [mount for _, mount in volumes],
        }
        if process.folder is not None:
            container["workingDir"] = process.folder
        if self._has_device(process) or process.role in ("switch", "agent"):
            container["securityContext"] = {"privileged": True}  # devices, raw sockets
        return {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "restartPolicy": restart,
            "nodeSelector": {"kubernetes.io/hostname": process.host},
            "containers": [container],
            "volumes": [volume for volume, _ in volumes],
        }

    def _variables(self, process: PlannedProcess) -> list[Manifest]:
        """Those of the description's [training.environment] by reference: a manifest has no secrets."""
        secret = ENVIRONMENT.format(self._testbed.name)
        given = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if self._gpus(process) else ()
        planned = self._environment(process).items()
        private = [name for name in process.private if name not in given]  # those are the device plugin's
        return [
            *({"name": name, "value": _literal(value)} for name, value in planned),
            *({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in private),
        ]

    def _environment(self, process: PlannedProcess) -> dict[str, str]:
        environment = dict(process.environment)
        if process.role == "worker" and "connect_s=" not in environment.get("THC_TIMEOUTS", ""):
            given = environment.get("THC_TIMEOUTS")
            environment["THC_TIMEOUTS"] = ",".join(filter(None, [given, f"connect_s={CONNECT_TIMEOUT_S}"]))
        if gpus := self._gpus(process):
            # The device plugin names the pod's GPUs in it, for the container's runtime: what is given here would win.
            environment.pop("NVIDIA_VISIBLE_DEVICES", None)
            if "CUDA_VISIBLE_DEVICES" in {*environment, *process.private}:  # a pod numbers those that it has from 0 on
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
        return environment

    def _gpus(self, process: PlannedProcess) -> int:
        return sum(len(worker.gpus) for worker in self._own_workers(process))

    def _has_device(self, process: PlannedProcess) -> bool:
        return isinstance(self._testbed.transport, Dpdk) and process.role in ("worker", "aggregator")

    def _own_workers(self, process: PlannedProcess) -> list[Worker]:
        """The workers that a process is: one, or all ranks that torchrun starts on its host."""
        if process.role != "worker":
            return []
        if self._testbed.training.launcher == "torchrun":
            return [worker for worker in self._workers if worker.host.name == process.host]
        return [worker for worker in self._workers if process.name == f"worker{worker.number}"]

    def _resources(self, process: PlannedProcess) -> Manifest:
        limits: dict[str, str] = {}
        if gpus := self._gpus(process):
            limits["nvidia.com/gpu"] = str(gpus)
        transport = self._testbed.transport
        if isinstance(transport, Dpdk) and self._has_device(process) and transport.hugepages != "none":
            resource, _, page_mib = _PAGES[transport.hugepages]
            limits[resource] = f"{-(-transport.memory_mib // page_mib) * page_mib}Mi"
        # Huge pages are given only to pods that ask for processor or memory, too.
        return {"requests": {"cpu": "1"} | limits, "limits": limits}

    def _volumes(self, process: PlannedProcess) -> list[tuple[Manifest, Manifest]]:
        """Volumes, and where they are mounted."""
        folder = self._testbed.run_folder
        volumes: list[tuple[Manifest, Manifest]] = [
            ({"name": "run", "emptyDir": {}}, {"name": "run", "mountPath": folder}),
        ]
        if sockets := process.environment.get("BYTEPS_SOCKET_PATH"):  # BytePS does not make it
            volumes.append(({"name": "sockets", "emptyDir": {}}, {"name": "sockets", "mountPath": sockets}))
        texts = [file for file in self._plan.files if file.text is not None and file.host == process.host]
        if texts and process.role in ("switch", "agent"):
            source = {"name": "files", "configMap": {"name": FILES.format(self._testbed.name)}}
            (file,) = texts
            volumes.append((source, {"name": "files", "mountPath": file.path, "subPath": file_key(file)}))
        if process.role in ("worker", "server"):
            memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
            volumes.append((memory, {"name": "shared-memory", "mountPath": "/dev/shm"}))
        transport = self._testbed.transport
        if isinstance(transport, Dpdk) and self._has_device(process) and transport.hugepages != "none":
            pages = {"name": "huge-pages", "emptyDir": {"medium": _PAGES[transport.hugepages][1]}}
            volumes.append((pages, {"name": "huge-pages", "mountPath": "/dev/hugepages"}))
        key_file = self._testbed.job.key_file
        if key_file is not None and process.role in ("worker", "aggregator"):
            secret = {"secretName": KEY.format(self._testbed.name), "defaultMode": 0o400}
            volumes.append(
                (
                    {"name": "key", "secret": secret},
                    {"name": "key", "mountPath": key_file, "subPath": "key", "readOnly": True},
                )
            )
        return volumes
