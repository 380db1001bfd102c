"""Tries something in a process of its own, which may crash or hang there: python -m byteps_thc._cli.doctor.probes NAME.

Prints the answer as one line of JSON.
"""

import contextlib
import ctypes
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NOT_INSTALLED: dict[str, object] = {"installed": False}
_EAL_ARGUMENTS = ("--no-huge", "-m", "64", "--no-pci", "--no-telemetry", "--vdev=net_null0")
#: Addresses for documentation (RFC 5737); no packet leaves a null device.
_OWN_IP, _SERVER_IP, _SERVER_MAC = "192.0.2.1", "192.0.2.2", "02:00:00:00:00:01"


def probe_torch() -> dict[str, object]:
    """Import torch and return its build's features."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # torch is installed, and lacks a dependency
        return _NOT_INSTALLED
    import torch.distributed as dist

    distributed = dist.is_available()
    return {
        "installed": True,
        "version": torch.__version__,
        "gloo": distributed and dist.is_gloo_available(),
        "nccl": distributed and dist.is_nccl_available(),
        "built_for_cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def probe_byteps() -> dict[str, object]:
    """Import BytePS's PyTorch plug-in, and load THC's compressor into it."""
    try:
        installed = version("byteps")
    except PackageNotFoundError:
        return _NOT_INSTALLED
    import torch

    from byteps_thc._base.errors import ConfigurationError
    from byteps_thc._net.byteps.library import find_worker_library

    answer: dict[str, object] = {"installed": True, "version": installed, "torch": torch.__version__}
    try:
        return answer | {"compressor": find_worker_library() is not None}
    except ConfigurationError as error:
        return answer | {"error": str(error)}


def probe_dpdk() -> dict[str, object]:
    """Start DPDK without huge pages and any real device. Nobody answers behind a null device: a deadline is success."""
    from byteps_thc._base.errors import DeadlineError, DpdkUnavailableError
    from byteps_thc._net.session import DpdkConfig, Session, Timeouts
    from byteps_thc._scheme.adding.server_codes import ServerCodes

    backend = DpdkConfig(_OWN_IP, eal_args=_EAL_ARGUMENTS, neighbours=[(_SERVER_IP, _SERVER_MAC)])
    timeouts = Timeouts(connect_s=0.05)
    try:
        with contextlib.suppress(DeadlineError):
            Session(
                [_SERVER_IP], job=1, worker=0, workers=1, codes=ServerCodes(), timeouts=timeouts, backend=backend
            ).close()
    except DpdkUnavailableError as error:
        return {"error": str(error)}
    maps = Path("/proc/self/maps").read_text()
    library = ctypes.CDLL(next(line.split()[-1] for line in maps.splitlines() if "librte_eal" in line))
    library.rte_version.restype = ctypes.c_char_p
    text: bytes = library.rte_version()
    return {"version": text.decode()}


PROBES = {"torch": probe_torch, "byteps": probe_byteps, "dpdk": probe_dpdk}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]]()))
