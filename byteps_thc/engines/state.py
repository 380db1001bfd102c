"""Checks of what load_state_dict() gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byteps_thc.errors import ConfigurationError


def require_fitting_state(state: Mapping[str, Any], identity: Mapping[str, Any], counters: tuple[str, ...]) -> None:
    """Raise ConfigurationError unless `state` has these values, the counters, and residuals by name."""
    missing = [key for key in (*identity, *counters, "residuals") if key not in state]
    if missing:
        raise ConfigurationError(f"not the state of an engine: {', '.join(missing)} missing")
    for key, value in identity.items():
        if state[key] != value:
            raise ConfigurationError(f"state does not fit: its {key} is {state[key]!r}, here it is {value!r}")
    for key in counters:
        if not isinstance(state[key], int) or not 0 <= state[key] < 1 << 32:
            raise ConfigurationError(f"state is damaged: its {key} is {state[key]!r}, not a count")
    if not isinstance(state["residuals"], Mapping):
        raise ConfigurationError("state is damaged: its residuals are not a mapping from parameter names to tensors")
