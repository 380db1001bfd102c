"""Stub of the first commit: from a testbed to the plan of a run."""

from __future__ import annotations

from byteps_thc.tools.testbed.description import Testbed
from byteps_thc.tools.testbed.process import Plan


def plan(testbed: Testbed) -> Plan:
    """Compute everything a run needs. ConfigurationError: the parts do not fit together."""
    raise NotImplementedError(testbed)
