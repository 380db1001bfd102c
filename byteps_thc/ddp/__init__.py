"""THC for DistributedDataParallel, in one line.

ddp.register_comm_hook(ThcState(None, ThcConfig()), thc_hook)
"""

from byteps_thc.ddp.hook import thc_hook
from byteps_thc.ddp.state import ThcState
from byteps_thc.engines.network import NetworkConfig
from byteps_thc.engines.policy import CompressionPolicy

__all__ = ["CompressionPolicy", "NetworkConfig", "ThcState", "thc_hook"]
