"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024).

Names of this module and of `byteps_thc.ddp`, `.fsdp`, `.torch` and `.checkpoint` are public. All other modules
are private and may change.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from byteps_thc._base.built import check_built, explain

check_built(Path(__file__).parent)

if TYPE_CHECKING:
    from byteps_thc._base.errors import (
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
    from byteps_thc._base.limits import Bits
    from byteps_thc._engine.adding.averager import GradientAverager
    from byteps_thc._engine.policy import CompressionPolicy
    from byteps_thc._engine.statistics import CompressionStats
    from byteps_thc._net.servers import NetworkConfig
    from byteps_thc._net.session import DpdkConfig, Session, Timeouts, UdpConfig
    from byteps_thc._own_loop import ThcReducer
    from byteps_thc._own_loop.synchronizer import ParameterSynchronizer, synchronize_parameters
    from byteps_thc._scheme.adding.compressor import Compressor, Partition
    from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
    from byteps_thc._scheme.adding.tables import LookupTable
    from byteps_thc._scheme.rounding import RoundingMode

    __version__: str

#: Modules of the names below, in the order of the search; only the last two need torch.
_HOMES = (
    "_base.errors",
    "_scheme.adding.server_codes",
    "_scheme.adding.tables",
    "_engine.policy",
    "_engine.statistics",
    "_net.session",
    "_net.servers",
    "_scheme.adding.compressor",
    "_engine.adding.averager",
    "_own_loop",
    "_own_loop.synchronizer",
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
    "ResolvedCodes",
    "RestartError",
    "RoundingMode",
    "ServerCodes",
    "ServerRefusedError",
    "Session",
    "ThcError",
    "ThcReducer",
    "Timeouts",
    "TransportError",
    "UdpConfig",
    "synchronize_parameters",
]
