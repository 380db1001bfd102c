"""ThcReducer: averages of named tensors, for loops that are not DDP, FSDP or BytePS."""

import byteps_thc.needs_torch  # noqa: F401
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.reducer.average_work import AverageWork
from byteps_thc.reducer.thc_reducer import ThcReducer
from byteps_thc.transport.servers import NetworkConfig

__all__ = ["AverageWork", "CompressionPolicy", "NetworkConfig", "ThcReducer"]
