"""Replicas that may drift apart are made identical again: the paper's synchronisation (section 6), every epoch."""

import byteps_thc._scheme.needs_torch  # noqa: F401
from byteps_thc._synchronization.synchronizer import ParameterSynchronizer, synchronize_parameters

__all__ = ["ParameterSynchronizer", "synchronize_parameters"]
