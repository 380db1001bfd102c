"""Copies parameters and optimizer state to replicas that have drifted apart (section 6 of the paper).

_net/replicas.py moves the bytes among ranks, torch/operations.py through BytePS.
"""

import byteps_thc._scheme.needs_torch  # noqa: F401
from byteps_thc._synchronization.synchronizer import ParameterSynchronizer, synchronize_parameters

__all__ = ["ParameterSynchronizer", "synchronize_parameters"]
