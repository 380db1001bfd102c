"""THC for DistributedDataParallel, in one line.

ddp.register_comm_hook(ThcState(None, ThcConfig()), thc_hook)
"""

from byteps_thc.ddp.hook import thc_hook
from byteps_thc.ddp.state import ThcState
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.servers import NetworkConfig

__all__ = ["CompressionPolicy", "NetworkConfig", "ThcState", "thc_hook"]
