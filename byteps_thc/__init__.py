"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024)."""

from byteps_thc.averager import AverageStats, GradientAverager
from byteps_thc.compressor import Compressor, Partition
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ThcError
from byteps_thc.session import Session
from byteps_thc.tables import LookupTable

__all__ = [
    "AverageStats",
    "Compressor",
    "GradientAverager",
    "LookupTable",
    "Partition",
    "ResolvedConfig",
    "Session",
    "ThcConfig",
    "ThcError",
]
