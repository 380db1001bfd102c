"""Environment variables of a run's processes: the same settings for everyone, by construction."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.testbed.agent import RUN_FOLDER
from thc_lab.testbed.description import (
    Testbed,
    Worker,
    aggregator_nic,
    config_of,
    interface_of,
    management_interface_of,
    racks_of,
)
from thc_lab.testbed.process import ResultsFile
from thc_lab.testbed.sections import Dpdk, HostDescription, Nic, Racks, SwitchAggregator

#: Path of the file that worker 0 writes the training's results to.
RESULTS_VARIABLE = "THC_TESTBED_RESULTS"

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: All workers of namespaces share the cores of one host: waiting threads must not poll, and working ones be few.
_ONE_HOST = {
    "BYTEPS_POLL_NS": "200000",
    "BYTEPS_SERVER_ENGINE_THREAD": "2",
    "BYTEPS_OMP_THREAD_PER_GPU": "1",
    "BYTEPS_NUMA_ON": "0",
    "OMP_NUM_THREADS": "1",
}


def servers_of(testbed: Testbed, worker: Worker) -> str:
    """IP:PORT of every thc-ps, of the switch, or of the leaf of the worker's rack, as THC_SERVERS takes them."""
    aggregator = testbed.aggregator
    if isinstance(aggregator, SwitchAggregator):
        return f"{aggregator.switch.ip}:{UDP_PORT}"
    if isinstance(aggregator, Racks):
        [rack] = [rack for rack in racks_of(testbed, aggregator) if rack.has(worker.number)]
        return address_of_thc_ps(testbed, rack.leaf)
    return ",".join(address_of_thc_ps(testbed, host) for host in testbed.aggregator_hosts)


def address_of_thc_ps(testbed: Testbed, host: HostDescription) -> str:
    """IP:PORT of the thc-ps on a host: of its first thread."""
    assert not isinstance(testbed.aggregator, SwitchAggregator)
    return f"{aggregator_nic(testbed, host).ip}:{testbed.aggregator.port}"


def path_environment(folder: str | None) -> dict[str, str]:
    """PATH with the folder of the commands in front; nothing when they are on it anyway."""
    return {} if folder is None else {"PATH": f"{folder}:{_SYSTEM_PATH}"}


def byteps_environment(testbed: Testbed, role: str, host: HostDescription) -> dict[str, str]:
    """Variables of BytePS that all its processes have."""
    shared = {
        "DMLC_ROLE": role,
        "DMLC_NODE_HOST": str(host.management_ip),
        "DMLC_NUM_WORKER": str(testbed.workers),
        "DMLC_NUM_SERVER": str(testbed.training.byteps_servers),
        "DMLC_PS_ROOT_URI": str(testbed.coordinator.management_ip),
        "DMLC_PS_ROOT_PORT": str(testbed.training.port),
    }
    # One worker alone would be taken for a training without servers, and scheduler and servers would end at once.
    distributed = {"BYTEPS_FORCE_DISTRIBUTED": "1"} if testbed.workers == 1 else {}
    return shared | distributed | (_ONE_HOST if testbed.reach == "namespaces" else {})


def byteps_worker_environment(testbed: Testbed, worker: Worker, sockets: str) -> dict[str, str]:
    """Variables of one bpslaunch worker. sockets: a folder of its own."""
    gpus = ",".join(map(str, worker.gpus))
    own = {
        "DMLC_WORKER_ID": str(worker.number),
        "BYTEPS_SOCKET_PATH": sockets,
        "NVIDIA_VISIBLE_DEVICES": gpus or "0",  # bpslaunch starts a process for each entry
    }
    own |= {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {"BYTEPS_PCIE_SWITCH_SIZE": "1"}
    shared = byteps_environment(testbed, "worker", worker.host)
    return without_private(testbed, shared | own | thc_environment(testbed, worker))


def torch_environment(testbed: Testbed, worker: Worker) -> dict[str, str]:
    """Variables of a host's ranks; worker: the host's first."""
    local = testbed.reach == "namespaces"
    own = {name: value for name, value in _ONE_HOST.items() if local and not name.startswith("BYTEPS_")}
    interface = management_interface_of(worker.host) if local else worker.host.management_interface
    if interface is not None:
        own |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return without_private(testbed, own | thc_environment(testbed, worker))


def without_private(testbed: Testbed, variables: Mapping[str, str]) -> dict[str, str]:
    """The plan's variables of a worker, without names in [training.environment], which take precedence."""
    return {name: value for name, value in variables.items() if name not in testbed.training.environment}


def results_file(workers: Sequence[Worker]) -> ResultsFile:
    """The file for the training's results, which worker 0 writes."""
    return ResultsFile(workers[0].host.name, f"{RUN_FOLDER}/results.json")


def thc_environment(testbed: Testbed, worker: Worker) -> dict[str, str]:
    """Variables of byteps_thc, from which Compression.thc() and NetworkConfig.from_environment() take everything."""
    job, transport = testbed.job, testbed.transport
    network = {"quorum": job.quorum, "loss_tolerant": job.loss_tolerant or None}
    network |= {"lanes": testbed.lanes if testbed.training.launcher == "bpslaunch" else None}
    given = {name: value for name, value in network.items() if value is not None}
    settings = settings_text(given | transport.timeouts.model_dump(exclude_none=True))
    variables = {
        "THC_SERVERS": ",".join(filter(None, [servers_of(testbed, worker), settings])),
        "THC_JOB": str(job.id),
        "THC_LOCAL": worker.address,
        "THC_DEADLINE_S": f"{testbed.training.deadline_s:g}",
    }
    if isinstance(transport, Dpdk):
        arguments = eal_arguments(testbed, transport, worker.host, worker.nic, f"worker{worker.number}")
        variables |= {"THC_BACKEND": "dpdk", "THC_EAL_ARGS": shlex.join(arguments)}
    first = worker.number == 0
    optional = {
        "THC_CONFIG": config_text(config_of(testbed)),
        "THC_KEY_FILE": job.key_file or "",
        RESULTS_VARIABLE: results_file([worker]).path if testbed.training.results and first else "",
    }
    return variables | {name: value for name, value in optional.items() if value}


def config_text(config: ServerCodes) -> str:
    """Return the differences from a default ServerCodes, in the form of THC_CONFIG."""
    default = ServerCodes().model_dump()
    return settings_text({name: value for name, value in config.model_dump().items() if value != default[name]})


def settings_text(settings: Mapping[str, Any]) -> str:
    """Write setting=value,setting=value."""
    return ",".join(f"{name}={_text(value)}" for name, value in settings.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def eal_arguments(testbed: Testbed, dpdk: Dpdk, host: HostDescription, nic: Nic, process: str) -> list[str]:
    """EAL's arguments of a process that has one NIC. Sessions and thc-ps add the queues of virtual devices."""
    memory = ["--no-huge"] if not dpdk.hugepages else []
    memory += ["-m", str(dpdk.memory_mib)]
    cores = ["--lcores", nic.lcores] if nic.lcores else []
    prefix = f"--file-prefix=thc-{testbed.name}-{process}"
    if dpdk.driver == "af_packet":
        device = ["--no-pci", f"--vdev=net_af_packet0,iface={interface_of(host, nic)}"]
    else:
        device = ["-a", str(nic.pci_address)]
    return [*memory, *cores, "--no-telemetry", prefix, *device, *dpdk.eal_args]
