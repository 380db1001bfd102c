"""Do all ranks have the same settings? Asked once, when an engine is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from byteps_thc.config import ResolvedConfig
from byteps_thc.engines.lanes import Lane
from byteps_thc.errors import ConfigurationError


def require_same_settings(lane: Lane, ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError on all ranks when a setting is not the same on all of them, naming it and who has what.

    settings: plain values. TransportError or DeadlineError when other ranks do not answer.
    """
    everyone = [json.loads(text) for text in _gather(lane, ranks, json.dumps(dict(settings)).encode())]
    differences = []
    for name in sorted({name for theirs in everyone for name in theirs}):
        values = [theirs.get(name) for theirs in everyone]
        if any(value != values[0] for value in values):
            differences.append(f"{name} is " + ", ".join(f"{v!r} on rank {rank}" for rank, v in enumerate(values)))
    if differences:
        raise ConfigurationError("ranks have different settings: " + "; ".join(differences))


def require_same_table(lane: Lane, resolved: ResolvedConfig) -> None:
    """As require_same_settings, for what the same settings have come to: other versions may have chosen otherwise."""
    table = resolved.table
    chosen = {"table": [*table.values], "threshold": table.threshold.hex(), "value_bits": resolved.value_bits}
    require_same_settings(lane, resolved.workers, chosen)


def _gather(lane: Lane, ranks: int, text: bytes) -> list[bytes]:
    longest = torch.tensor([len(text)], dtype=torch.int32)
    lane.max_(longest).wait()
    size = int(longest[0])
    mine = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)
    everyone = torch.zeros(ranks * size, dtype=torch.uint8)
    lane.all_gather(everyone, mine).wait()
    return [bytes(part.tolist()) for part in everyone.view(ranks, size)]
