"""THC for DistributedDataParallel, in one call: state = compress(ddp, bits=4)."""

import byteps_thc.needs_torch  # noqa: F401
from byteps_thc.ddp.compress import compress
from byteps_thc.ddp.state import ThcState, thc_hook
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.servers import NetworkConfig

__all__ = ["CompressionPolicy", "NetworkConfig", "ThcState", "compress", "thc_hook"]
