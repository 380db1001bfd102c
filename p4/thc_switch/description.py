"""The administrator's description, a TOML file: the switch, its ports, and the training jobs that it sums.

Everything is checked when it is read, so that a plan made from a Deployment can be installed. ConfigurationError has
the remedy.
"""

import json
import tomllib
from collections.abc import Iterator
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS
from byteps_thc._base.wire.layout import MAX_WORKERS
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
from byteps_thc._scheme.adding.tables import LookupTable
from thc_switch import limits
from thc_switch.description_types import (
    ControlAddress,
    Description,
    InterfaceName,
    MacAddress,
    PortNumber,
    PortSpeed,
    UdpPort,
    refuse_repeated,
)
from thc_switch.upstream_description import UpstreamDescription


class PortSettings(Description):
    """A front-panel port of a Tofino that installing brings up. Ports not named here stay as they are."""

    number: PortNumber
    """device port (`dev_port`)"""
    speed: PortSpeed
    fec: Literal["none", "firecode", "reed_solomon"] = "none"
    auto_negotiation: bool | None = None
    """None: as the driver thinks best"""

    def __str__(self) -> str:
        return f"port {self.number}: {self.speed}, FEC {self.fec}"


class RecirculationPort(Description):
    """A port at which packets recirculate, one for each pipe that holds rows."""

    port: PortNumber
    loopback_speed: Literal["100G", "200G", "400G"] | None = None
    """None: the pipe's own recirculation port; otherwise a front-panel port that is set to MAC loopback"""

    def __str__(self) -> str:
        kind = "internal" if self.loopback_speed is None else f"{self.loopback_speed} loopback"
        return f"recirculation port {self.port}: {kind}"


class Station(Description):
    """A host that is no worker, reached at one port."""

    mac: MacAddress
    port: PortNumber


class Route(Description):
    """Next hop of packets that are sent to the switch's MAC address but not to its IP address."""

    prefix: IPv4Network
    next_hop_mac: MacAddress
    port: PortNumber


class SwitchDescription(Description):
    """One switch."""

    architecture: Literal["tofino1", "tofino2", "v1model"]
    ip: IPv4Address
    """service address: workers are given it as their server"""
    mac: MacAddress
    cpu_port: PortNumber
    """port to the agent (`thc switch serve`)"""
    cpu_port_speed: PortSpeed | None = None
    """None: installing does not bring it up, because it is (PCIe), or has settings that PortSettings lacks"""
    cpu_interface: InterfaceName | None = None
    """the agent's network interface to that port"""
    program: str = Field(default="thc_tna", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """name of the P4 program: of its source in p4/programs/tna, and in the configuration of bf_switchd"""
    control_address: ControlAddress | None = None
    """IP:PORT of the gRPC server (Tofino) or the Thrift server (bmv2); None: their usual port on this host"""
    recirculation: tuple[RecirculationPort, ...]
    """One, two or four pipes share the work; the first is the home pipe, which checks packets and answers. Packets of
    workers in other pipes recirculate once more."""
    ports: tuple[PortSettings, ...] = ()
    stations: tuple[Station, ...] = Field(default=(), max_length=limits.MAX_STATIONS)
    routes: tuple[Route, ...] = Field(default=(), max_length=limits.MAX_ROUTES)
    buffer_bytes: int = Field(default=1 << 20, ge=1 << 12, le=1 << 30)
    """bytes in flight towards the switch that its buffers take; the workers of all jobs share them as their windows"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pipes not in limits.PIPE_COUNTS:
            raise ValueError(f"recirculation names {self.pipes} ports; one, two or four pipes can share 8 passes")
        refuse_repeated("recirculation port", (entry.port for entry in self.recirculation))
        refuse_repeated("port", (entry.number for entry in self.ports))
        refuse_repeated("station", (entry.mac for entry in self.stations))
        refuse_repeated("route to", (entry.prefix for entry in self.routes))
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
        # A packet to a recirculation port comes back as if the switch itself had let it in.
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
        """Ports that no frame may be forwarded to: the CPU's and recirculation ports."""
        return frozenset({self.cpu_port, *(entry.port for entry in self.recirculation)})

    @property
    def slots(self) -> int:
        """Slots for all jobs together."""
        return limits.max_slots(self.pipes)

    def pipe_of(self, port: int) -> int:
        """Return the pipe of a port; bmv2 has one."""
        return 0 if self.architecture == "v1model" else port >> 7


class WorkerDescription(Description):
    """One worker. Its socket is bound to `ip`:`udp_port`: packets from elsewhere are dropped."""

    ip: IPv4Address
    mac: MacAddress
    udp_port: UdpPort
    port: PortNumber
    """switch port it is reached at"""

    def of_lane(self, lane: int) -> "WorkerDescription":
        """Return the same worker's socket for a lane."""
        return WorkerDescription(**dict(self) | {"udp_port": self.udp_port + lane})


#: Source of a job's packets: a worker, or the root of a leaf.
Peer = WorkerDescription | UpstreamDescription


class JobDescription(Description):
    """One training job. Workers are numbered in the order they are listed, from 0 or the first of the rack."""

    job_id: int = Field(ge=0, le=65535)
    workers: tuple[WorkerDescription, ...]
    slots: int = Field(default=512, ge=2)
    """packets that can be summed at a time"""
    first_slot: int | None = Field(default=None, ge=0)
    """None: after the jobs before it"""
    quorum: int | None = None
    """workers that complete a sum; None: all"""
    upstream: UpstreamDescription | None = None
    """the root, when this switch sums for one rack: `workers` are that rack's, in order"""
    lanes: int = Field(default=1, ge=1, le=16)
    """lane k is job job_id + k with as many slots, from the UDP port k above: a lane of BytePS, or a shard of a mesh"""
    thc: ServerCodes = ServerCodes()

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.workers)
        if not 1 <= count <= limits.MAX_WORKERS:
            raise ValueError(
                f"{count} workers: a switch job has 1 to {limits.MAX_WORKERS}; thc-ps sums for {MAX_WORKERS}, and the "
                f"ranks of a process group for up to {MAX_RANKS}"
            )
        refuse_repeated("worker", (f"{worker.ip}:{worker.udp_port}" for worker in self.workers))
        if not 1 <= self.contributions <= count:
            raise ValueError(f"quorum must be in 1 .. {count} (workers), not {self.contributions}")
        if self.upstream is not None:
            self._check_rack(self.upstream)
        self._check_thc()
        if self.upstream is not None:
            self.upstream.check_sums(self.table.granularity)
        return self

    def _check_rack(self, upstream: UpstreamDescription) -> None:
        if len(self.workers) != len(upstream.workers):
            raise ValueError(
                f"{len(self.workers)} workers are listed, and rack {upstream.rack} of {upstream.racks!r} has "
                f"{len(upstream.workers)}: list those of this rack alone"
            )
        if self.quorum is not None:
            raise ValueError("quorum: racks wait for all workers; omit it")
        if any((worker.ip, worker.udp_port) == (upstream.ip, upstream.udp_port) for worker in self.workers):
            raise ValueError(f"upstream has the address of a worker, {upstream.ip}:{upstream.udp_port}")

    def _check_thc(self) -> None:
        config = self.thc
        if config.bits != limits.CODE_BITS:
            raise ValueError(f"thc.bits is {config.bits}; the switch looks up {limits.CODE_BITS}-bit codes")
        if config.codes_per_packet not in ("auto", limits.CODES_PER_PACKET):
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
        workers, largest_sum = self.num_workers, (1 << limits.VALUE_BITS) - 1
        granularity = self.thc.granularity
        if granularity != "auto" and granularity * workers > largest_sum:
            raise ValueError(
                f"granularity {granularity} * {workers} workers = {granularity * workers} does not fit the switch's "
                f"{limits.VALUE_BITS}-bit sums (at most {largest_sum}): use thc.granularity {largest_sum // workers} "
                "or less"
            )
        if self.thc.value_bits not in ("auto", limits.VALUE_BITS):
            raise ValueError(f"thc.value_bits is {self.thc.value_bits}; the switch sums in {limits.VALUE_BITS} bits")

    def of_lanes(self) -> Iterator["JobDescription"]:
        """The job of each lane."""
        fields = {name: getattr(self, name) for name in JobDescription.model_fields} | {"lanes": 1}
        for lane in range(self.lanes):
            fields["job_id"] = self.job_id + lane
            fields["workers"] = tuple(worker.of_lane(lane) for worker in self.workers)
            fields["first_slot"] = None if self.first_slot is None else self.first_slot + lane * self.slots
            yield JobDescription(**fields)

    @property
    def num_workers(self) -> int:
        """Workers of the job, in all racks."""
        return len(self.workers) if self.upstream is None else self.upstream.num_workers

    @property
    def numbered_workers(self) -> dict[int, WorkerDescription]:
        """This switch's workers by their numbers in the job."""
        first = 0 if self.upstream is None else self.upstream.workers.start
        return dict(enumerate(self.workers, first))

    @property
    def peers(self) -> tuple[Peer, ...]:
        """This switch's workers, and the root of a leaf."""
        return self.workers if self.upstream is None else (*self.workers, self.upstream)

    @property
    def contributions(self) -> int:
        """Workers of this switch that complete a sum."""
        return len(self.workers) if self.quorum is None else self.quorum

    @cached_property
    def resolved(self) -> ResolvedCodes:
        """Lookup table and settings, as the workers resolve them with value_bits=8."""
        return self.thc.model_copy(update={"value_bits": limits.VALUE_BITS}).resolve(self.num_workers)

    @property
    def table(self) -> LookupTable:
        """The lookup table."""
        return self.resolved.table


class Deployment(Description):
    """A switch and its jobs: the contents of a job description file."""

    switch: SwitchDescription
    jobs: tuple[JobDescription, ...] = ()
    """with a job for each lane"""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a TOML file, or a program's JSON (*.json); ConfigurationError names the file and the mistake."""
        try:
            text = path.read_text()
            fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
            raise ConfigurationError(f"{path} is not a job description: {error}") from error
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
            raise ValueError(
                f"{len(self.jobs)} jobs: a switch supports {limits.MAX_JOBS}; remove jobs, or use another switch"
            )
        leaves = sum(job.upstream is not None for job in self.jobs)
        if len(self.jobs) * limits.JOB_ROWS + leaves * limits.ROOT_ROWS > limits.JOB_ENTRIES:
            most = (limits.JOB_ENTRIES - len(self.jobs) * limits.JOB_ROWS) // limits.ROOT_ROWS
            raise ValueError(f"{leaves} of {len(self.jobs)} jobs have an upstream: with so many jobs {most} may")
        stations = sum(len(job.workers) for job in self.jobs) + leaves
        if stations > limits.MAX_ALL_WORKERS:
            raise ValueError(
                f"{stations} workers and roots of all jobs: a switch supports {limits.MAX_ALL_WORKERS}; remove jobs"
            )
        refuse_repeated("job_id", (job.job_id for job in self.jobs))
        self._check_peers()
        self._check_tables()
        return self

    def _check_peers(self) -> None:
        ports: dict[str, int] = {entry.mac: entry.port for entry in self.switch.stations}
        for job in self.jobs:
            roles = [*(f"worker {number}" for number in job.numbered_workers), "upstream"]
            for role, peer in zip(roles, job.peers, strict=False):
                name = f"{role} of job {job.job_id}"
                if peer.port in self.switch.internal_ports:
                    raise ValueError(f"{name}: port {peer.port} is the CPU's or recirculates; use a front-panel port")
                if peer.ip == self.switch.ip or peer.mac == self.switch.mac:
                    raise ValueError(f"{name} has the address of the switch; give it its own")
                if ports.setdefault(peer.mac, peer.port) != peer.port:
                    raise ValueError(f"{name}: {peer.mac} is at port {ports[peer.mac]} and at {peer.port}")

    def _check_tables(self) -> None:
        # Every block has one copy of one table; a job in its key would halve the table size that fits into a stage.
        first = self.jobs[0] if self.jobs else None
        for job in self.jobs[1:]:
            assert first is not None
            if job.table.values != first.table.values:
                # The table for the most workers fits all.
                least = min((other.table for other in self.jobs), key=lambda table: table.granularity)
                pins = {"granularity": least.granularity, "p": least.p}
                if any(other.num_workers * ((1 << limits.CODE_BITS) - 1) >> limits.VALUE_BITS for other in self.jobs):
                    pins["value_bits"] = limits.VALUE_BITS
                raise ValueError(
                    f"jobs {first.job_id} and {job.job_id} use different lookup tables, and a switch holds one: give "
                    f"all jobs thc = {{ {', '.join(f'{name} = {value}' for name, value in pins.items())} }} and their "
                    f"workers THC_CONFIG={','.join(f'{name}={value}' for name, value in pins.items())}"
                )
