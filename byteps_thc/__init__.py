"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024).

What is named here and in `byteps_thc.ddp`, `.fsdp`, `.torch`, `.checkpoint` and `.baselines` is for users; all other
modules are private and may change.
"""

from typing import TYPE_CHECKING

from byteps_thc.averager import GradientAverager
from byteps_thc.compressor import Compressor, Partition
from byteps_thc.config import ResolvedConfig, ThcConfig, ThcSettings
from byteps_thc.errors import (
    CheckpointError,
    ConfigurationError,
    DeadlineError,
    DpdkUnavailableError,
    InputError,
    RestartError,
    ServerRefusedError,
    ThcError,
    TransportError,
)
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.statistics import CompressionStats, StatsWriter
from byteps_thc.tables import LookupTable
from byteps_thc.transport.servers import NetworkConfig
from byteps_thc.transport.session import DpdkConfig, FaultConfig, Session, Timeouts, UdpConfig

if TYPE_CHECKING:
    from byteps_thc.reducer import ThcReducer
else:

    def __getattr__(name: str) -> object:
        """Import what needs torch when somebody asks for it."""
        if name != "ThcReducer":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from byteps_thc.reducer import ThcReducer

        globals()[name] = ThcReducer
        return ThcReducer


__all__ = [
    "CheckpointError",
    "CompressionPolicy",
    "CompressionStats",
    "Compressor",
    "ConfigurationError",
    "DeadlineError",
    "DpdkConfig",
    "DpdkUnavailableError",
    "FaultConfig",
    "GradientAverager",
    "InputError",
    "LookupTable",
    "NetworkConfig",
    "Partition",
    "ResolvedConfig",
    "RestartError",
    "ServerRefusedError",
    "Session",
    "StatsWriter",
    "ThcConfig",
    "ThcError",
    "ThcReducer",
    "ThcSettings",
    "Timeouts",
    "TransportError",
    "UdpConfig",
]
