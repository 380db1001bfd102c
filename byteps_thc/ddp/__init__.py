"""Compressed averages for DistributedDataParallel: state = compress(ddp, bits=4)."""

import byteps_thc._base.needs_torch  # noqa: F401
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.ddp.state import ThcState, compress, thc_hook

__all__ = ["CompressionPolicy", "NetworkConfig", "ThcState", "compress", "thc_hook"]
