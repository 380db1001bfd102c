"""Whether all processes of a BytePS training have the same settings, and the same arithmetic."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.push_pull import push_pull_async_inplace, synchronize
from byteps_thc._scheme.arithmetic import arithmetic_version, version_name
from byteps_thc._scheme.errors import ConfigurationError

_NAME = "THC.settings"


def different_ranks(settings: object, deadline_s: float | None) -> list[int]:
    """Return the ranks whose settings have another repr() than this process's; called by all processes.

    deadline_s: of synchronize(). Raises DeadlineError, and ConfigurationError on all processes if one has another
    version of the arithmetic.
    """
    hashed = hashlib.sha256(repr(settings).encode()).digest()
    digest = np.append(np.frombuffer(hashed, np.int32), np.int32(arithmetic_version()))
    rows = torch.zeros(process.size(), digest.size, dtype=torch.int32, device="cpu")
    rows.numpy()[process.rank()] = digest
    synchronize(push_pull_async_inplace(rows, average=False, name=_NAME), deadline_s)
    require_same_arithmetic(rows.numpy()[:, -1], process.rank())
    return [rank for rank, row in enumerate(rows.numpy()) if not np.array_equal(row, digest)]


def require_same_arithmetic(versions: npt.NDArray[np.int32], rank: int) -> None:
    """Raise ConfigurationError unless all processes have the version of this one. versions: int32[ranks]."""
    own = int(versions[rank])
    others = {other: int(version) for other, version in enumerate(versions) if version != own}
    if others:
        names = ", ".join(f"{version_name(version)} on process {other}" for other, version in others.items())
        raise ConfigurationError(
            f"processes have different versions of byteps_thc's arithmetic: {version_name(own)} on this one ({rank}), "
            f"{names}. Install the same version of byteps_thc on the hosts of all workers"
        )
