"""The description of a testbed: a TOML file that says everything about a training, its network and its hosts.

Checked when it is read, so that a plan made of it can be run. ConfigurationError names the file, the key and what to
change.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.testbed.description_checks import check
from byteps_thc.tools.testbed.description_errors import explain
from byteps_thc.tools.testbed.description_parts import (
    Dpdk,
    HostDescription,
    JobSettings,
    Kubernetes,
    Racks,
    Section,
    Slurm,
    SwitchAggregator,
    ThcPs,
    Training,
    Udp,
)
from byteps_thc.tools.testbed.description_words import HostName, PlainPath

#: Short enough for the sockets that BytePS makes below it.
Folder = Annotated[PlainPath, Field(max_length=60)]


class Testbed(Section):
    """A training with its servers, switch and hosts."""

    __test__ = False  # for pytest: no test, in spite of its name

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$")]
    reach: Literal["namespaces", "ssh"]
    """namespaces: every host is a network namespace of this one; Slurm and Kubernetes: hosts as for ssh"""
    folder: Folder | None = None
    """on each host, for files of a run: made, or this user's with mode 700; None: /var/tmp/thc-<name>"""
    bin: PlainPath | None = None
    """folder of thc, thc-ps, bpslaunch and python3 on every host; None: on PATH, in namespaces those that run this"""
    hosts: Annotated[tuple[HostDescription, ...], Field(min_length=1)]
    aggregator: Annotated[ThcPs | Racks | SwitchAggregator, Field(discriminator="kind")]
    transport: Annotated[Udp | Dpdk, Field(discriminator="kind")]
    job: JobSettings = JobSettings()
    training: Training
    slurm: Slurm = Slurm()
    kubernetes: Kubernetes | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check(self)
        return self

    @property
    def run_folder(self) -> str:
        """`folder`, with the default put in."""
        return self.folder or f"/var/tmp/thc-{self.name}"

    @property
    def worker_hosts(self) -> tuple[HostDescription, ...]:
        """Hosts with workers, in the order in which those are numbered: as described, or rack by rack."""
        hosts = tuple(host for host in self.hosts if host.workers)
        if not isinstance(self.aggregator, Racks):
            return hosts
        order = [name for rack in self.aggregator.racks for name in rack.hosts]
        return tuple(sorted(hosts, key=lambda host: order.index(host.name) if host.name in order else len(order)))

    @property
    def workers(self) -> int:
        """Workers of all hosts; with torchrun ranks."""
        return sum(host.workers for host in self.hosts)

    @property
    def lanes(self) -> int:
        """Jobs of the training on the aggregator: lanes of BytePS, with the default put in."""
        if self.training.launcher == "torchrun":
            return 1
        return self.job.lanes or (1 if isinstance(self.transport, Dpdk) else 2)

    @property
    def server_threads(self) -> int:
        """Threads of a thc-ps, each with a UDP port, with the default put in; a switch has one port."""
        if isinstance(self.aggregator, SwitchAggregator):
            return 1
        return self.aggregator.threads or self.transport.polling_threads

    @property
    def coordinator(self) -> HostDescription:
        """Host of BytePS's scheduler and servers, or of rank 0."""
        return self.host(self.training.coordinator or self.worker_hosts[0].name)

    @property
    def aggregator_hosts(self) -> tuple[HostDescription, ...]:
        """Hosts of thc-ps, the root first; none for a switch."""
        if isinstance(self.aggregator, SwitchAggregator):
            return ()
        if isinstance(self.aggregator, Racks):
            return tuple(map(self.host, (self.aggregator.root, *(rack.leaf for rack in self.aggregator.racks))))
        if self.aggregator.kind == "colocated":
            return self.worker_hosts
        return tuple(self.host(name) for name in self.aggregator.hosts)

    def host(self, name: HostName) -> HostDescription:
        """Return a host by its name."""
        return next(host for host in self.hosts if host.name == name)


def load(path: Path) -> Testbed:
    """Read a TOML file; ConfigurationError names it, the key and what to change."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} is no description of a testbed: {error}") from error
    _resolve_folder(fields, path.resolve().parent)
    try:
        return Testbed(**fields)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {explain(error, Testbed)}") from error


def _resolve_folder(fields: dict[str, Any], beside: Path) -> None:
    """In namespaces the training runs where the description is, so that it may name the script beside it."""
    training = fields.get("training")
    if fields.get("reach") == "namespaces" and isinstance(training, dict):
        training["folder"] = str(beside / str(training.get("folder", "")))
