"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024)."""

from byteps_thc.compressor import Compressor, Partition
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.tables import LookupTable

__all__ = ["Compressor", "LookupTable", "Partition", "ResolvedConfig", "ThcConfig"]
