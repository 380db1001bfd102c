"""The engines among ranks that decode each other's codes, put together: in host memory, and on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.pipeline.agreement import Questions
from byteps_thc.pipeline.device.agreement import DeviceAgreement
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.fingerprint import Fingerprints
from byteps_thc.pipeline.flat_engine import FlatEngine, Place
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.ranks.codec import RankCodec
from byteps_thc.pipeline.ranks.device_piece import DeviceTools, prepare_device_pieces
from byteps_thc.pipeline.ranks.piece import RankTools, prepare_rank_pieces
from byteps_thc.pipeline.staging import Staging, make_device_staging, make_staging
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.rank_settings import RankSettings
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.rank_messages import RankMessages
from byteps_thc.transport.recorder import PlainCollective

_CPU = torch.device("cpu")
#: Communicators of an engine: for what is asked and summed exactly, for codes, and for averages.
COMMUNICATORS = 3


def rank_engine(
    settings: RankSettings,
    rank: int,
    policy: CompressionPolicy,
    communicators: Sequence[Communicator],
    questions: Callable[[Communicator], Questions],
    *,
    sharded: bool,
    threads: int,
    leave: Callable[[], None],
) -> FlatEngine:
    """Return an engine in host memory with a thread for each stage.

    communicators: COMMUNICATORS of host tensors. questions: makes what asks the other ranks. sharded: for a
    reduce-scatter. threads: of the kernels. leave: see FlatEngine.
    """
    exact, to_owners, of_owners = communicators
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    pool = _core.ThreadPool(threads) if threads > 1 else None
    clock, asked, fingerprints = WorkClock(), questions(exact), Fingerprints(settings.identity, rank)
    tools = RankTools(
        RankCodec(settings, rank, pool),
        RankMessages(to_owners, of_owners, recorder, settings.ranks, _CPU),
        fingerprints,
        asked,
        recorder,
        clock,
    )
    return FlatEngine(
        policy,
        Place(_CPU, SideStream(_CPU), in_stream=False, staging=lambda gradient: make_staging(gradient, recorder)),
        EngineState(rank, settings.ranks, settings.settings, recorder=recorder),
        partial(prepare_rank_pieces, tools),
        fingerprints=fingerprints,
        exact=exact.sum_,
        questions=asked,
        alone=settings.ranks == 1,
        clock=clock,
        leave=leave,
    )


def device_rank_engine(
    settings: RankSettings,
    rank: int,
    policy: CompressionPolicy,
    communicator: Communicator,
    device: torch.device,
    *,
    sharded: bool,
    of_layouts: Questions | None = None,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine that puts everything on a stream of its own: no call waits for the device.

    communicator: of tensors on the device, for nobody else. Deadlines are the communicator's own: with NCCL its
    watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a reduce-scatter. of_layouts: see
    FlatEngine. compress_alone: compress also with one rank, which has nothing to average: for tests and measurements.
    leave: see FlatEngine.
    """
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    stream = SideStream(device)
    fingerprints = Fingerprints(settings.identity, rank)
    agreement = DeviceAgreement(fingerprints, device, communicator)
    messages = RankMessages(communicator, communicator, recorder, settings.ranks, device)

    def staging(gradient: Tensor) -> Staging | None:
        return None if gradient.device == device else make_device_staging(gradient, stream, recorder)

    return FlatEngine(
        policy,
        Place(device, stream, in_stream=True, staging=staging),
        EngineState(rank, settings.ranks, settings.settings, recorder=recorder),
        partial(prepare_device_pieces, DeviceTools(settings, rank, messages, agreement, recorder)),
        fingerprints=fingerprints,
        exact=agreement.spoiled(communicator.sum_),
        questions=agreement,
        of_layouts=of_layouts,
        alone=settings.ranks == 1 and not compress_alone and not sharded,
        leave=leave,
    )
