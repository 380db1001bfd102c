"""The state of compression in checkpoints of torch.distributed.checkpoint (DCP): counters, and residuals if any.

    dcp.save({"model": model_state, "thc": checkpointable(state)}, checkpoint_id=path)

    dcp.load({"model": model_state}, checkpoint_id=path)
    load(state, path)                                   # by as many ranks as you like

`state` is a ThcState, a handle of byteps_thc.fsdp or another state of a plug-in. loading.shares() says what happens to
the residuals when the number of ranks changes. Frameworks that save on one rank get gathered(state), which has the
parts of all of them.
"""

import byteps_thc._scheme.needs_torch  # noqa: F401
from byteps_thc.checkpoint.entries import CompressionState, checkpointable
from byteps_thc.checkpoint.gathering import gathered
from byteps_thc.checkpoint.loading import load

__all__ = ["CompressionState", "checkpointable", "gathered", "load"]
