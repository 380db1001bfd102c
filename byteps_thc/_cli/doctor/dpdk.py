"""Checks of DPDK: whether it starts, huge pages, locked memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import byteps_thc
from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.processes import ProbeError, run_command, run_probe, why_not_loaded

_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")
_DPDK_DEADLINE_S = 20.0
_LDD_DEADLINE_S = 10.0
#: The DPDK back end (worker_dpdk/io/dpdk_module.h).
_LIBRARY = Path(byteps_thc.__file__).parent / "_native/libthc_dpdk.so"
#: What a network card's rings and packet buffers take; DPDK through VFIO locks them.
_LOCKED_BYTES = 512 << 20


def check_dpdk() -> Sequence[Finding]:
    """Whether this build has DPDK, its libraries are here, and EAL and a device start."""
    if not _LIBRARY.exists():
        meaning = "built without DPDK; kernel UDP works"
        return [Finding("DPDK", State.OPTIONAL, meaning, "apt-get install libdpdk-dev && pip install .  # in a clone")]
    missing = _missing_libraries()
    if missing:
        meaning = f"is built in, and its libraries are not installed ({', '.join(missing)}); kernel UDP works"
        return [Finding("DPDK", State.OPTIONAL, meaning, "apt-get install dpdk librte-meta-net librte-meta-mempool")]
    if why_not_loaded("_comm"):
        return [Finding("DPDK", State.OPTIONAL, "is built in, and the module that loads it does not load")]
    try:
        answer = run_probe("dpdk_probe", _DPDK_DEADLINE_S)
    except ProbeError as error:
        answer = {"error": str(error)}
    if "error" in answer:
        hint = "" if os.geteuid() == 0 else "sudo thc doctor    # EAL may need root here"
        return [Finding("DPDK", State.PROBLEM, f"is built in, and does not start: {answer['error']}", hint)]
    return [Finding("DPDK", State.OK, f"{answer['version']}; starts without huge pages and opens a device")]


def _missing_libraries() -> list[str]:
    """What of DPDK the back end cannot find, asked of the dynamic linker without running anything of it."""
    outcome = run_command(["ldd", str(_LIBRARY)], _LDD_DEADLINE_S)
    return [line.split()[0] for line in outcome.output.splitlines() if "not found" in line]


def check_huge_pages() -> Sequence[Finding]:
    """Huge pages of each size."""
    total, free = 0, 0
    sizes = []
    for folder in sorted(_HUGE_PAGES.glob("hugepages-*kB")):
        size_kib = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        pages = int((folder / "nr_hugepages").read_text())
        free_pages = int((folder / "free_hugepages").read_text())
        total, free = total + pages, free + free_pages
        sizes.append(f"{size_kib // 1024} MiB: {free_pages} of {pages} free")
    if not total:
        meaning = "none; DPDK on a network card needs them, memif and af_packet do not (--no-huge)"
        return [Finding("huge pages", State.OPTIONAL, meaning, "sysctl -w vm.nr_hugepages=512")]
    if not free:
        meaning = f"{', '.join(sizes)}: another program has them all"
        return [Finding("huge pages", State.PROBLEM, meaning, "sysctl -w vm.nr_hugepages=1024")]
    return [Finding("huge pages", State.OK, ", ".join(sizes))]


def check_locked_memory() -> Sequence[Finding]:
    """How much memory this user may lock, which DPDK through VFIO and RDMA do."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit_bytes == resource.RLIM_INFINITY or limit_bytes >= _LOCKED_BYTES:
        return [Finding("locked memory", State.OK, "enough for VFIO and RDMA")]
    meaning = f"{limit_bytes >> 20} MiB; DPDK on a network card and BytePS over RDMA lock more"
    if os.geteuid() == 0:
        return [Finding("locked memory", State.OK, f"limit of {limit_bytes >> 20} MiB, from which root is exempt")]
    return [Finding("locked memory", State.OPTIONAL, meaning, "ulimit -l unlimited    # or /etc/security/limits.conf")]
