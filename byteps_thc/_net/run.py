"""Identity of a worker's training, host and node."""

import ipaddress
import os
import socket
from pathlib import Path

from byteps_thc._base.environment import variable
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.fnv1a import fnv1a_64

#: A text or number of one training, the same on all its workers; 7 and "7" are the same.
Run = int | str
#: TORCHELASTIC_RUN_ID without --rdzv-id or --standalone, the same in all trainings.
_TORCHRUN_DEFAULT = "none"


def told_run(run: Run | None) -> str | None:
    """Return the run, by default THC_RUN's, as a text; None without any. ConfigurationError for other types."""
    run = (variable("RUN") or None) if run is None else run
    if run is None:
        return None
    if isinstance(run, bool) or not isinstance(run, int | str) or run == "":
        raise ConfigurationError(f"run is {run!r}: pass a number or a text, the same on all workers of this training")
    try:
        return str(run).encode().decode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"run is {run!r}, with a surrogate that UTF-8 cannot encode: pass a number or a text without surrogates"
        ) from error


def run_of_launcher() -> str | None:
    """Return the run in the launcher's variables, the same on all its workers and after restarts; None without them."""
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    if torchrun and torchrun != _TORCHRUN_DEFAULT:
        return f"torchrun {torchrun}"
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    if job and step:  # without a step, srun has not started this process
        return f"slurm {job}.{step}"
    return run_of_scheduler()


def run_number(run: str | None) -> int:
    """Return the 64 bits for HELLO: 0 without a run, and otherwise never 0."""
    return 0 if run is None else fnv1a_64(run.encode(errors="surrogateescape")) or 1


def run_of_scheduler() -> str | None:
    """Return the address of a BytePS training's scheduler, which two trainings cannot share; None without one."""
    address, port = os.environ.get("DMLC_PS_ROOT_URI"), os.environ.get("DMLC_PS_ROOT_PORT")
    if not address or not port:
        return None
    # A loopback address is another scheduler on each host.
    host = f" of {host_identity().decode(errors='replace')}" if _is_loopback(address) else ""
    return f"scheduler {address}:{port}{host}"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def host_identity() -> bytes:
    # Host names may be the same on all hosts (localhost); boot ids differ.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return socket.gethostname().encode()


def node_identity() -> str:
    """Return a text that identifies the node: the host, and its network, as containers may have their own."""
    # The process's: a thread may be in another network namespace.
    try:
        network = Path("/proc/self/ns/net").stat()
    except OSError:
        return host_identity().decode()
    return f"{host_identity().decode()} {network.st_dev}:{network.st_ino}"


def host_of(node: str) -> str:
    return node.partition(" ")[0]
