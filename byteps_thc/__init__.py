"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024).

Names of this module and of `byteps_thc.ddp`, `.fsdp`, `.torch` and `.checkpoint` are public. All other modules
are private and may change.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from byteps_thc._scheme.built import check_built, explain

check_built(Path(__file__).parent)

if TYPE_CHECKING:
    from byteps_thc._engine.averager import GradientAverager
    from byteps_thc._engine.policy import CompressionPolicy
    from byteps_thc._engine.statistics import CompressionStats
    from byteps_thc._net.servers import NetworkConfig
    from byteps_thc._net.session import DpdkConfig, Session, Timeouts, UdpConfig
    from byteps_thc._reducer import ThcReducer
    from byteps_thc._scheme.compressor import Compressor, Partition
    from byteps_thc._scheme.config import Bits, ResolvedConfig, ThcConfig, ThcSettings
    from byteps_thc._scheme.errors import (
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
    from byteps_thc._scheme.rounding import RoundingMode
    from byteps_thc._scheme.tables import LookupTable
    from byteps_thc._synchronization import ParameterSynchronizer, synchronize_parameters

    #: of the installed distribution
    __version__: str

#: Where the names below are, in the order in which they are looked for; only the last two need torch.
_HOMES = (
    "_scheme.errors",
    "_scheme.config",
    "_scheme.tables",
    "_engine.policy",
    "_engine.statistics",
    "_net.session",
    "_net.servers",
    "_scheme.compressor",
    "_engine.averager",
    "_reducer",
    "_synchronization",
)


def __getattr__(name: str) -> object:
    """Import the named object alone: `thc doctor` must run even if the compiled modules do not load."""
    if name == "__version__":
        globals()[name] = importlib.import_module("importlib.metadata").version(__name__)
        return globals()[name]
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home in _HOMES:
        try:
            module = importlib.import_module(f"{__name__}.{home}")
        except ImportError as error:
            raise explain(error) from error
        if name in vars(module):
            globals()[name] = vars(module)[name]
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}, which its __all__ has")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


__all__ = [
    "Bits",
    "CheckpointError",
    "CompressionPolicy",
    "CompressionStats",
    "Compressor",
    "ConfigurationError",
    "DeadlineError",
    "DpdkConfig",
    "DpdkUnavailableError",
    "GradientAverager",
    "InputError",
    "LookupTable",
    "NetworkConfig",
    "ParameterSynchronizer",
    "Partition",
    "ResolvedConfig",
    "RestartError",
    "RoundingMode",
    "ServerRefusedError",
    "Session",
    "ThcConfig",
    "ThcError",
    "ThcReducer",
    "ThcSettings",
    "Timeouts",
    "TransportError",
    "UdpConfig",
    "synchronize_parameters",
]
