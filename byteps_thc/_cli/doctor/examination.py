"""All checks, in the order they are shown in. All but those of servers run at the same time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from byteps_thc._cli.doctor import dpdk, frameworks, installation, interfaces, leftovers, server, sockets
from byteps_thc._cli.doctor.finding import Check, Finding, run_check
from byteps_thc._cli.doctor.visit import Visit

_SECTIONS: tuple[tuple[str, tuple[Check, ...]], ...] = (
    (
        "package",
        (installation.check_modules, installation.check_kernels, installation.check_cores, installation.check_thc_ps),
    ),
    (
        "training",
        (frameworks.check_torch, frameworks.check_bfloat16, frameworks.check_byteps, frameworks.check_shared_memory),
    ),
    (
        "network",
        (interfaces.check_interfaces, sockets.check_port, sockets.check_socket_buffer),
    ),
    ("DPDK", (dpdk.check_dpdk, dpdk.check_huge_pages, dpdk.check_locked_memory)),
    ("runs that were killed", (leftovers.check_shared_memory,)),
)


@dataclass(frozen=True)
class Section:
    """Findings about one part of the system."""

    title: str
    findings: Sequence[Finding]


def examine(visits: Sequence[Visit] = ()) -> list[Section]:
    """Run all checks, and then visit these servers: the others would keep processors busy while rates are measured."""
    checks = [check for _, section in _SECTIONS for check in section]
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        findings = iter(list(pool.map(run_check, checks)))
    sections = [
        Section(title, [finding for _ in section for finding in next(findings)]) for title, section in _SECTIONS
    ]
    if visits:
        sections.append(Section("servers", run_check(functools.partial(server.check_servers, visits))))
    return sections
