"""What an administrator writes: the switch, its ports, and the training jobs it sums for. A TOML file.

Everything is checked when it is read, so that a plan made from a Deployment can be installed. ConfigurationError says
what to change.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.tables import LookupTable
from byteps_thc.wire.layout import MAX_WORKERS
from byteps_thc.worker_limits import MAX_RANKS
from thc_switch import limits

_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


def _check_mac(text: str) -> str:
    mac = text.lower().replace("-", ":")
    if not _MAC.fullmatch(mac):
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01")
    if int(mac[:2], 16) & 1:
        raise ValueError(f"{text!r} is a group address; give the station's own")
    return mac


MacAddress = Annotated[str, AfterValidator(_check_mac)]
PortNumber = Annotated[int, Field(ge=0, le=limits.MAX_PORT)]
PortSpeed = Literal["10G", "25G", "40G", "50G", "100G", "200G", "400G"]
UdpPort = Annotated[int, Field(ge=1, le=65535)]


class _Description(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigurationError(_explain(error)) from error


class PortSettings(_Description):
    """A front-panel port of a Tofino that installing brings up. Ports not named here stay as they are."""

    number: PortNumber
    """device port (`dev_port`)"""
    speed: PortSpeed
    fec: Literal["none", "firecode", "reed_solomon"] = "none"
    auto_negotiation: bool | None = None
    """None: as the driver thinks best"""

    def __str__(self) -> str:
        return f"port {self.number}: {self.speed}, FEC {self.fec}"


class RecirculationPort(_Description):
    """Where packets go round again: one for each pipe the rows are spread over."""

    port: PortNumber
    loopback_speed: Literal["100G", "200G", "400G"] | None = None
    """None: the pipe's own recirculation port; otherwise a front-panel port that is set to MAC loopback"""

    def __str__(self) -> str:
        kind = "internal" if self.loopback_speed is None else f"{self.loopback_speed} loopback"
        return f"recirculation port {self.port}: {kind}"


class Station(_Description):
    """A host that is no worker, reached at one port."""

    mac: MacAddress
    port: PortNumber


class Route(_Description):
    """Next hop of packets that are sent to the switch's MAC address but not to its IP address."""

    prefix: IPv4Network
    next_hop_mac: MacAddress
    port: PortNumber


class SwitchDescription(_Description):
    """One switch."""

    architecture: Literal["tofino1", "tofino2", "v1model"]
    ip: IPv4Address
    """service address: workers are given it as their server"""
    mac: MacAddress
    cpu_port: PortNumber
    """port to the agent (`thc switch serve`)"""
    cpu_port_speed: PortSpeed | None = None
    """None: installing does not bring it up, because it is (PCIe), or has settings that PortSettings lacks"""
    cpu_interface: str | None = None
    """the agent's end of it: a network interface of the host"""
    program: str = Field(default="thc_tna", pattern=r"^[A-Za-z_]\w*$")
    """name of the P4 program: of its source in p4/programs/tna, and in the configuration of bf_switchd"""
    control_address: str | None = None
    """IP:PORT of the gRPC server (Tofino) or the Thrift server (bmv2); None: their usual port on this host"""
    recirculation: tuple[RecirculationPort, ...]
    """One, two or four pipes share the work; the first is the home pipe, which checks packets and answers."""
    ports: tuple[PortSettings, ...] = ()
    stations: tuple[Station, ...] = Field(default=(), max_length=limits.MAX_STATIONS)
    routes: tuple[Route, ...] = Field(default=(), max_length=limits.MAX_ROUTES)
    flood_group: int = Field(default=65535, gt=limits.MAX_JOBS, le=65535)
    """multicast group for frames to unknown stations"""
    buffer_bytes: int = Field(default=1 << 20, ge=1 << 12, le=1 << 30)
    """bytes in flight towards the switch that its buffers take; the workers of all jobs share them as their windows"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pipes not in limits.PIPE_COUNTS:
            raise ValueError(f"recirculation names {self.pipes} ports; one, two or four pipes can share 8 passes")
        _refuse_repeated("recirculation port", (entry.port for entry in self.recirculation))
        _refuse_repeated("port", (entry.number for entry in self.ports))
        _refuse_repeated("station", (entry.mac for entry in self.stations))
        _refuse_repeated("route to", (entry.prefix for entry in self.routes))
        self._check_ports()
        for station in self.stations:
            if station.mac == self.mac:
                raise ValueError(f"station {station.mac} has the MAC address of the switch; give it its own")
        return self

    def _check_ports(self) -> None:
        recirculation = {entry.port for entry in self.recirculation}
        if self.cpu_port in recirculation:
            raise ValueError(f"port {self.cpu_port} is the cpu_port and a recirculation port; use another one")
        pipes = {self.pipe_of(port) for port in recirculation}
        if self.architecture != "v1model" and len(pipes) != self.pipes:
            raise ValueError("every recirculation port must be in another pipe (pipe = device port / 128)")
        # What is sent to a recirculation port comes back as if the switch itself had let it in.
        for name, port in self._front_ports():
            if port in self.internal_ports:
                raise ValueError(f"{name}: port {port} is the CPU's or recirculates; use a front-panel port")

    def _front_ports(self) -> Iterator[tuple[str, int]]:
        yield from (("ports", entry.number) for entry in self.ports)
        yield from ((f"station {station.mac}", station.port) for station in self.stations)
        yield from ((f"route to {route.prefix}", route.port) for route in self.routes)

    @property
    def pipes(self) -> int:
        """Pipes that share the passes of a packet."""
        return len(self.recirculation)

    @property
    def home_port(self) -> int:
        """Recirculation port of the home pipe."""
        return self.recirculation[0].port

    @property
    def ports_to_bring_up(self) -> tuple[PortSettings, ...]:
        """`ports` and the CPU's, which frames are not flooded to."""
        if self.cpu_port_speed is None:
            return self.ports
        return (*self.ports, PortSettings(number=self.cpu_port, speed=self.cpu_port_speed))

    @property
    def internal_ports(self) -> frozenset[int]:
        """Ports that no frame may be forwarded to: the CPU's and those that recirculate."""
        return frozenset({self.cpu_port, *(entry.port for entry in self.recirculation)})

    @property
    def slots(self) -> int:
        """Slots for all jobs together."""
        return limits.max_slots(self.pipes)

    def pipe_of(self, port: int) -> int:
        """Return the pipe of a port; bmv2 has one."""
        return 0 if self.architecture == "v1model" else port >> 7


class WorkerDescription(_Description):
    """One worker. Its socket is bound to `ip`:`udp_port`: packets from elsewhere are dropped."""

    ip: IPv4Address
    mac: MacAddress
    udp_port: UdpPort
    port: PortNumber
    """switch port it is reached at"""

    def of_lane(self, lane: int) -> WorkerDescription:
        """The same worker's socket for a lane."""
        return WorkerDescription(ip=self.ip, mac=self.mac, udp_port=self.udp_port + lane, port=self.port)


class JobDescription(_Description):
    """One training job. Workers are numbered in the order they are listed."""

    job_id: int = Field(ge=0, le=65535)
    workers: tuple[WorkerDescription, ...]
    slots: int = Field(default=512, ge=2)
    first_slot: int | None = Field(default=None, ge=0)
    """None: after the jobs before it"""
    quorum: int | None = None
    """workers that complete a sum; None: all"""
    lanes: int = Field(default=1, ge=1, le=16)
    """of a BytePS training (THC_LANES): lane k is job job_id + k with as many slots, from the UDP port k above"""
    thc: ThcConfig = ThcConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.workers)
        if not 1 <= count <= limits.MAX_WORKERS:
            raise ValueError(
                f"{count} workers: a switch job has 1 to {limits.MAX_WORKERS}; thc-ps sums for {MAX_WORKERS}, and the "
                f"ranks of a process group for up to {MAX_RANKS}"
            )
        _refuse_repeated("worker", (f"{worker.ip}:{worker.udp_port}" for worker in self.workers))
        if not 1 <= self.contributions <= count:
            raise ValueError(f"quorum must be in 1 .. {count} (workers), not {self.contributions}")
        self._check_thc()
        return self

    def _check_thc(self) -> None:
        config = self.thc
        if config.bits != limits.CODE_BITS:
            raise ValueError(f"thc.bits is {config.bits}; the switch looks up {limits.CODE_BITS}-bit codes")
        if config.codes_per_packet != limits.CODES_PER_PACKET:
            raise ValueError(
                f"thc.codes_per_packet is {config.codes_per_packet}; a switch packet has {limits.CODES_PER_PACKET}"
            )
        chunks = -(-config.partition_coordinates // limits.CODES_PER_PACKET)
        if chunks > limits.MAX_CHUNKS:
            most_bytes = 4 * limits.CODES_PER_PACKET * limits.MAX_CHUNKS
            raise ValueError(
                f"thc.partition_bytes makes {chunks} packets of a partition; the switch numbers {limits.MAX_CHUNKS}: "
                f"use at most {most_bytes}"
            )
        self._check_sums()

    def _check_sums(self) -> None:
        workers, largest_sum = len(self.workers), (1 << limits.VALUE_BITS) - 1
        granularity = (1 << limits.CODE_BITS) - 1 if self.thc.uniform_table else self.thc.granularity
        if granularity != "auto" and granularity * workers > largest_sum:
            raise ValueError(
                f"granularity {granularity} * {workers} workers = {granularity * workers} does not fit the switch's "
                f"{limits.VALUE_BITS}-bit sums (at most {largest_sum}): use thc.granularity {largest_sum // workers} "
                "or less, and no uniform_table"
            )
        if self.thc.value_bits not in ("auto", limits.VALUE_BITS):
            raise ValueError(f"thc.value_bits is {self.thc.value_bits}; the switch sums in {limits.VALUE_BITS} bits")

    def of_lanes(self) -> Iterator[JobDescription]:
        """The job of each lane."""
        for lane in range(self.lanes):
            yield JobDescription(
                job_id=self.job_id + lane,
                workers=tuple(worker.of_lane(lane) for worker in self.workers),
                slots=self.slots,
                first_slot=None if self.first_slot is None else self.first_slot + lane * self.slots,
                quorum=self.quorum,
                thc=self.thc,
            )

    @property
    def contributions(self) -> int:
        """Workers that complete a sum."""
        return len(self.workers) if self.quorum is None else self.quorum

    @cached_property
    def resolved(self) -> ResolvedConfig:
        """Lookup table and settings, as the workers resolve them with value_bits=8."""
        return self.thc.model_copy(update={"value_bits": limits.VALUE_BITS}).resolve(len(self.workers))

    @property
    def table(self) -> LookupTable:
        """The lookup table."""
        return self.resolved.table


class Deployment(_Description):
    """A switch and its jobs: the contents of a job description file."""

    switch: SwitchDescription
    jobs: tuple[JobDescription, ...] = ()
    """those of lanes included, each on its own"""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a TOML file, or JSON (*.json) as programs write it; ConfigurationError says what is wrong in which."""
        try:
            text = path.read_text()
            fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
            raise ConfigurationError(f"{path} is no job description: {error}") from error
        try:
            return cls(**fields)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error

    @field_validator("jobs")
    @classmethod
    def _take_lanes(cls, jobs: tuple[JobDescription, ...]) -> tuple[JobDescription, ...]:
        return tuple(lane for job in jobs for lane in job.of_lanes())

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.jobs) > limits.MAX_JOBS:
            raise ValueError(f"{len(self.jobs)} jobs: a switch takes {limits.MAX_JOBS}")
        workers = sum(len(job.workers) for job in self.jobs)
        if workers > limits.MAX_ALL_WORKERS:
            raise ValueError(f"{workers} workers of all jobs: a switch takes {limits.MAX_ALL_WORKERS}")
        _refuse_repeated("job_id", (job.job_id for job in self.jobs))
        self._check_workers()
        self._check_tables()
        return self

    def _check_workers(self) -> None:
        ports: dict[str, int] = {entry.mac: entry.port for entry in self.switch.stations}
        for job in self.jobs:
            for number, worker in enumerate(job.workers):
                name = f"worker {number} of job {job.job_id}"
                if worker.port in self.switch.internal_ports:
                    raise ValueError(f"{name}: port {worker.port} is the CPU's or recirculates; use a front-panel port")
                if worker.ip == self.switch.ip or worker.mac == self.switch.mac:
                    raise ValueError(f"{name} has the address of the switch; give it its own")
                if ports.setdefault(worker.mac, worker.port) != worker.port:
                    raise ValueError(f"{name}: {worker.mac} is at port {ports[worker.mac]} and at {worker.port}")

    def _check_tables(self) -> None:
        # Every block has one copy of one table; a job in its key would halve what fits into a stage.
        for job in self.jobs[1:]:
            if job.table.values != self.jobs[0].table.values:
                raise ValueError(
                    f"jobs {self.jobs[0].job_id} and {job.job_id} use different lookup tables, and a switch holds one: "
                    "give both the same thc.granularity and thc.p"
                )


def _refuse_repeated(what: str, values: Iterable[Hashable]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value} is there twice")
        seen.add(value)


def _explain(error: ValidationError) -> str:
    """One line per mistake, without pydantic's type codes and links."""
    lines = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {message}" if where else message)
    return "; ".join(dict.fromkeys(lines))
