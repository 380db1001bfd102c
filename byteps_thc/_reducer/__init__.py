"""ThcReducer: averages of named tensors, for loops that are not DDP, FSDP or BytePS."""

import byteps_thc._scheme.needs_torch  # noqa: F401
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._reducer.calls import AverageWork
from byteps_thc._reducer.thc_reducer import ThcReducer

__all__ = ["AverageWork", "CompressionPolicy", "NetworkConfig", "ThcReducer"]
