"""The two ways in which ranks sum without servers: in shards, or by an all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.transport.all_reduce import AllReduceTransport, resolve_for_words
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.ranks import Collectives, RanksTransport, SumKernels
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.transport import Collective, Transport

#: Communicators of a transport: one for each stage that sends.
STREAMS: Mapping[Collective, int] = {"shards": 3, "all_reduce": 2}


def resolve_among_ranks(config: ThcConfig, collective: Collective, workers: int) -> ResolvedConfig:
    """Return the table for that many ranks of which all need the sums. ConfigurationError when the sums do not fit."""
    if collective == "all_reduce":
        return resolve_for_words(config, workers)
    return config.resolve(workers, packed_sums=True)


def ranks_transport(
    collective: Collective,
    resolved: ResolvedConfig,
    communicators: Sequence[Communicator],
    recorder: TrafficRecorder,
    sums: SumKernels,
    device: torch.device,
    *,
    sharded: bool,
) -> Transport:
    """Return the transport of a collective. communicators: STREAMS of them.

    Other arguments: see RanksTransport; sharded goes with "shards" only.
    """
    if collective == "all_reduce":
        assert not sharded
        return AllReduceTransport(resolved, communicators[0], communicators[1], recorder, sums, device)
    return RanksTransport(resolved, Collectives(*communicators), recorder, sums, device, sharded=sharded)
