"""Compression state in checkpoints of torch.distributed.checkpoint (DCP): counters, and residuals if any.

    dcp.save({"model": model_state, "thc": checkpointable(state)}, checkpoint_id=path)

    dcp.load({"model": model_state}, checkpoint_id=path)
    load(state, path)                                   # by any number of ranks

`state` is a ThcState, a handle of byteps_thc.fsdp, a ThcReducer or another state of a front end. If the number of ranks
or levels changes, residuals start at zero. For frameworks that save on one rank, gathered(state) collects the parts of
all ranks.
"""

import byteps_thc._base.needs_torch  # noqa: F401
from byteps_thc.checkpoint.entries import CompressionState, checkpointable
from byteps_thc.checkpoint.gathering import gathered
from byteps_thc.checkpoint.loading import load

__all__ = ["CompressionState", "checkpointable", "gathered", "load"]
