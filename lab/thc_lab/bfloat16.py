"""Virtual machines that show AMX, the processor's matrix unit, and do not let it run.

On such a machine torch's bfloat16 layers end the process with SIGILL, because oneDNN, which computes them, believes the
processor. ONEDNN_MAX_CPU_ISA keeps oneDNN from AMX, with the same results.
"""

import os
import signal
import sys
from pathlib import Path

from byteps_thc._cli.doctor.processes import Outcome, run_command

#: A variable that a process needs before it computes with torch.
VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
#: The explanation for users.
CRASH = "this machine shows AMX and does not let it run: torch's bfloat16 layers end with SIGILL"

_PROBE = "import torch; torch.nn.Linear(64, 64, device='cpu').bfloat16()(torch.ones(8, 64, device='cpu').bfloat16())"
_PROBE_DEADLINE_S = 90.0


def try_bfloat16() -> Outcome:
    """Compute a bfloat16 layer in a separate process, and return its outcome."""
    return run_command([sys.executable, "-P", "-c", _PROBE], _PROBE_DEADLINE_S)


def is_crash(outcome: Outcome) -> bool:
    """Whether it ended for want of AMX."""
    return outcome.code == -signal.SIGILL


def shows_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it has AMX; without it nothing needs to be tried."""
    try:
        return " amx_bf16" in cpuinfo.read_text()
    except OSError:
        return False


def do_without_amx_if_it_crashes() -> str:
    """Set VARIABLE for this process and its children if they need it; return a message about it, "" for nothing.

    If the processor shows AMX, the check takes as long as an import of torch. Call it before torch computes.
    """
    if VARIABLE in os.environ or not shows_amx() or not is_crash(try_bfloat16()):
        return ""
    os.environ[VARIABLE] = WITHOUT_AMX
    return f"{VARIABLE}={WITHOUT_AMX}, because {CRASH}"
