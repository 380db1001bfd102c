"""Whether DPDK starts."""

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import byteps_thc
from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.processes import ProbeError, run_command, run_probe, why_not_loaded

_DPDK_DEADLINE_S = 20.0
_LDD_DEADLINE_S = 10.0
#: The DPDK back end (worker_dpdk/io/dpdk_module.h).
_LIBRARY = Path(byteps_thc.__file__).parent / "_native/libthc_dpdk.so"


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
        answer = run_probe("dpdk", _DPDK_DEADLINE_S)
    except ProbeError as error:
        answer = {"error": str(error)}
    if "error" in answer:
        hint = "" if os.geteuid() == 0 else "sudo thc doctor    # EAL may need root here"
        return [Finding("DPDK", State.PROBLEM, f"is built in, and does not start: {answer['error']}", hint)]
    meaning = f"{answer['version']}; starts without huge pages and opens a device; {_of_a_card()}"
    return [Finding("DPDK", State.OK, meaning)]


def _of_a_card() -> str:
    """Return this host's huge pages and lockable memory, which a network card requires."""
    free = sum(int(path.read_text()) for path in Path("/sys/kernel/mm/hugepages").glob("*/free_hugepages"))
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limited = os.geteuid() != 0 and limit_bytes != resource.RLIM_INFINITY
    locked = f"locks memory, here at most {limit_bytes >> 20} MiB (ulimit -l)" if limited else "locks memory"
    return f"a network card takes huge pages, of which {free} are free here, and {locked}"


def _missing_libraries() -> list[str]:
    """Return DPDK's libraries that the dynamic linker does not find, without loading any."""
    outcome = run_command(["ldd", str(_LIBRARY)], _LDD_DEADLINE_S)
    return [line.split()[0] for line in outcome.output.splitlines() if "not found" in line]
