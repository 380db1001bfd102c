"""The engines among ranks that decode each other's codes, put together: in host memory, and on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.pipeline.agreement import DeviceAgreement, Questions
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.fingerprint import Fingerprints
from byteps_thc.pipeline.flat_engine import FlatEngine, Place
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.ranks.codec import RankCodec
from byteps_thc.pipeline.ranks.device_piece import DeviceRankScheme, DeviceTools
from byteps_thc.pipeline.ranks.figures import RankFigures
from byteps_thc.pipeline.ranks.piece import RankScheme, RankTools
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
    state = EngineState(rank, settings.ranks, settings.settings, stores={}, recorder=recorder)
    clock, asked = WorkClock(), questions(exact)
    tools = RankTools(
        RankCodec(settings, rank, pool),
        RankMessages(to_owners, of_owners, recorder, settings.ranks, _CPU),
        Fingerprints(settings.identity, rank),
        asked,
        recorder,
        clock,
    )
    return FlatEngine(
        settings.config,
        policy,
        Place(_CPU, SideStream(_CPU), in_stream=False, staging=lambda gradient: make_staging(gradient, recorder)),
        state,
        RankScheme(tools),
        figures=RankFigures(recorder),
        exact=exact.sum_,
        questions=asked,
        # Gradients of ranks that use other parameters have other sizes, which gloo does not survive.
        asks_first=sharded,
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
    of_layouts: Questions,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine that puts everything on a stream of its own: no call waits for the device.

    communicator: of tensors on the device, for nobody else. Deadlines are the communicator's own: with NCCL its
    watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a reduce-scatter. of_layouts: see
    DeviceAgreement. compress_alone: compress also with one rank, which has nothing to average: for tests and
    measurements. leave: see FlatEngine.
    """
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    stream = SideStream(device)
    agreement = DeviceAgreement(Fingerprints(settings.identity, rank), device, communicator, of_layouts)
    messages = RankMessages(communicator, communicator, recorder, settings.ranks, device)

    def staging(gradient: Tensor) -> Staging | None:
        return None if gradient.device == device else make_device_staging(gradient, stream, recorder)

    return FlatEngine(
        settings.config,
        policy,
        Place(device, stream, in_stream=True, staging=staging),
        EngineState(rank, settings.ranks, settings.settings, stores={}, recorder=recorder),
        DeviceRankScheme(DeviceTools(settings, rank, messages, agreement, recorder)),
        figures=RankFigures(recorder),
        exact=agreement.spoiled(communicator.sum_),
        questions=agreement,
        alone=settings.ranks == 1 and not compress_alone and not sharded,
        leave=leave,
    )
