"""The sections of a testbed's description, each by itself, and the words in them; description.py has the whole.

Words reach command lines on hosts, which root may run. They are quoted there. The patterns of the types here keep a
word from being an option or another path.
"""

from ipaddress import IPv4Address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from byteps_thc._base.wire.layout import MAX_JOB_ID, UDP_PORT
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_switch.description import JobDescription, SwitchDescription
from thc_switch.description_types import InterfaceName, MacAddress, PortNumber, UdpPort


def _refuse_dots(path: str) -> str:
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} has . or .. in it; write the path without them")
    return path


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$")]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
#: As EAL's --lcores takes them.
CoreList = Annotated[str, Field(pattern=r"^[0-9(][0-9(),@-]*$")]
#: An absolute path of plain characters: without tilde, blanks, ".", ".." and separators of paths.
PlainPath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._+@=-]+)+$"), AfterValidator(_refuse_dots)]
#: A path for the working folder of a process, which is never part of a command.
FolderPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
#: A word of a command that the user gives; lines of a script, too.
CommandWord = Annotated[str, Field(pattern=r"^[^\x00]*$")]
#: An argument of one of our programs.
Argument = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
#: The same, without blanks.
EalArgument = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f]+$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,252}$")]
#: One line: files of variables have one for each.
VariableValue = Annotated[str, Field(pattern=r"^[^\x00\n\r]*$")]


class Section(BaseModel):
    """Base of all sections: no unknown keys, and nothing changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Nic(Section):
    """A port of a host in the data network."""

    ip: IPv4Address
    """its address there; with DPDK the kernel has it not"""
    mac: MacAddress | None = None
    """a switch has to know it; None: in namespaces made of `ip`"""
    interface: InterfaceName | None = None
    """the kernel's name for it; None: in namespaces data0, data1, ..."""
    pci_address: PciAddress | None = None
    """for DPDK's drivers of network cards, such as 0000:3b:00.0"""
    lcores: CoreList | None = None
    """cores of DPDK's threads, as EAL's --lcores takes them: of the NIC's NUMA node; None: EAL chooses"""
    switch_port: PortNumber | None = None
    """device port of the switch at the other end of its cable"""


class HostDescription(Section):
    """A host with its place in both networks, and its number of workers."""

    name: HostName
    """of its namespace too"""
    management_ip: IPv4Address | None = None
    """for BytePS's TCP and torch's rendezvous: a network that DPDK does not take"""
    management_interface: InterfaceName | None = None
    """torchrun: the interface of management_ip, for gloo and NCCL; None: they choose"""
    workers: int = Field(default=0, ge=0, le=64)
    """bpslaunch: workers; torchrun: ranks"""
    gpus: int = Field(default=0, ge=0, le=64)
    """the host's GPUs, which its workers share out; 0: the processor trains"""
    nics: tuple[Nic, ...] = ()
    """worker k of the host has nics[k], or nics[0] where workers share it"""


class ThcPsSettings(Section):
    """Settings of all thc-ps of a testbed."""

    port: UdpPort = UDP_PORT
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """TCP port of Prometheus, at management_ip; 0: none"""
    options: tuple[Argument, ...] = ()
    """further options of thc-ps, such as ["--max-memory", "4GiB"]"""


class ThcPs(ThcPsSettings):
    """thc-ps on hosts of its own, or with kind "colocated" on every host that has workers."""

    kind: Literal["thc-ps", "colocated"]
    hosts: tuple[HostName, ...] = ()
    """of kind "thc-ps": one process on each"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "colocated") == bool(self.hosts):
            raise ValueError('hosts: names the hosts of kind "thc-ps"; "colocated" is all hosts with workers')
        return self


class Rack(Section):
    """Workers with a leaf of their own."""

    hosts: Annotated[tuple[HostName, ...], Field(min_length=1)]
    """whose workers are in it"""
    leaf: HostName
    """of the thc-ps that adds their codes, and sends the sums to the root"""


class Racks(ThcPsSettings):
    """Two levels of thc-ps: the root adds the sums of the leaves."""

    kind: Literal["racks"]
    root: HostName
    """of the thc-ps above the leaves"""
    racks: Annotated[tuple[Rack, ...], Field(min_length=2)]
    """workers are numbered rack by rack"""


class SwitchAggregator(Section):
    """A switch: a Tofino, or a P4 program in software."""

    kind: Literal["switch"]
    host: HostName
    """where the agent is; with a program in software the program, too"""
    runner: Literal["tofino", "model", "bmv2"]
    """model: the P4 model; bmv2: simple_switch, which has to be on PATH"""
    switch: SwitchDescription
    """as [switch] of a job description (p4/jobs.example.toml)"""
    interfaces: dict[PortNumber, InterfaceName] = {}
    """a program in software, outside of namespaces: its host's interface of each port"""
    slots: int = Field(default=512, ge=2)
    """of each lane"""
    further_jobs: tuple[JobDescription, ...] = ()
    """jobs of other trainings, which the same switch sums for"""


class TimeoutSettings(Section):
    """Timeouts in seconds, with the defaults of Session's Timeouts. An operation takes training.deadline_s at most."""

    connect_s: float | None = Field(default=None, gt=0)
    operation_s: float | None = Field(default=None, gt=0)
    loss_s: float | None = Field(default=None, gt=0)


class Udp(Section):
    """Kernel UDP."""

    kind: Literal["udp"]
    mtu_bytes: int = Field(default=1500, ge=1280, le=9978)
    """of the interfaces of namespaces; real hosts keep theirs"""
    timeouts: TimeoutSettings = TimeoutSettings()


class Dpdk(Section):
    """DPDK on every NIC of the data network."""

    kind: Literal["dpdk"]
    driver: Literal["af_packet", "vfio-pci", "bifurcated"]
    """af_packet: any interface of the kernel, for tests. vfio-pci: a card bound to that driver. bifurcated (mlx5): the
    kernel keeps the card, and DPDK takes the packets that are addressed to it"""
    hugepages: bool = True
    """False: --no-huge, for af_packet"""
    memory_mib: int = Field(default=1024, ge=64)
    """memory of each process that uses DPDK"""
    eal_args: tuple[EalArgument, ...] = ()
    """further arguments of EAL, for all"""
    timeouts: TimeoutSettings = TimeoutSettings()


class JobSettings(Section):
    """The training's job on the aggregator."""

    id: int = Field(default=1, ge=0, le=MAX_JOB_ID)
    lanes: int | None = Field(default=None, ge=1, le=16)
    """of BytePS: jobs id, id + 1, ... None: 2, with DPDK 1"""
    quorum: int | None = Field(default=None, ge=1)
    """workers that complete a sum; None: all"""
    loss_tolerant: bool = False
    key_file: PlainPath | None = None
    """path of the job's key on all hosts (docs/servers.md#keys); the testbed never reads it"""
    udp_port: UdpPort = 49000
    """of the first worker at a NIC; others and further lanes have those above it"""
    thc: ServerCodes = ServerCodes()
    """settings of ServerCodes, as THC_CONFIG takes them"""


class Training(Section):
    """The command of the workers."""

    launcher: Literal["bpslaunch", "torchrun"]
    command: Annotated[tuple[CommandWord, ...], Field(min_length=1)]
    """words, without a shell"""
    folder: FolderPath | None = None
    """working folder on every host; in namespaces relative to the description, and None: the description's folder"""
    environment: dict[VariableName, VariableValue] = {}
    """further variables of the workers; a plan has their names only"""
    results: bool = False
    """whether the command of worker 0 writes its results to $THC_TESTBED_RESULTS, as the example's does"""
    port: int = Field(default=9000, ge=1, le=65535)
    """TCP port of BytePS's scheduler or of torch's rendezvous, at the management_ip of the coordinator"""
    coordinator: HostName | None = None
    """host of BytePS's scheduler and servers, or of rank 0; None: the first one with workers"""
    byteps_servers: int = Field(default=1, ge=1, le=64)
    """BytePS's own servers, for small tensors and broadcasts"""
    deadline_s: float = Field(default=600.0, gt=0, le=86400)
    """of every wait for other workers"""
