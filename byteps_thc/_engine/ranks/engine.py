"""The engines among ranks that decode each other's codes, put together: in host memory, and on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from byteps_thc._engine.agreement import SAME_MODEL, SAME_ROWS, DeviceAgreement, Questions, RankAgreement
from byteps_thc._engine.device.stream import SideStream
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.flat_engine import FlatEngine, Place
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.ranks.codec import RankCodec
from byteps_thc._engine.ranks.device_piece import DeviceTools, prepare_device_pieces
from byteps_thc._engine.ranks.piece import RankTools, prepare_rank_pieces
from byteps_thc._engine.staging import Staging, make_device_staging, make_staging
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._native import _core
from byteps_thc._net.communicator import Communicator, ExactSum
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.recorder import PlainCollective
from byteps_thc._scheme.rank_settings import RankSettings

_CPU = torch.device("cpu")
#: Communicators of an engine: for what is asked and summed exactly, for codes, and for averages.
COMMUNICATORS = 3


def rank_engine(
    settings: RankSettings,
    rank: int,
    policy: CompressionPolicy,
    communicators: Sequence[Communicator],
    *,
    device: torch.device | None = None,
    sharded: bool = False,
    threads: int = 1,
    of_layouts: Communicator | None = None,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine: in host memory, with a thread for each stage, or on a device.

    communicators: COMMUNICATORS of host tensors, or one of tensors on the device, for nobody else. device: its engine
    puts everything on a stream of its own, so that no call waits for the device. Deadlines are the communicator's own
    there: with NCCL its watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a reduce-scatter.
    threads: of the kernels in host memory. of_layouts: on a device ranks compare the first gradient of each layout over
    it. compress_alone: compress on a device also with one rank, which has nothing to average: for tests and
    measurements. leave: see FlatEngine.
    """
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    clock, hint = WorkClock(), SAME_ROWS if sharded else SAME_MODEL
    fingerprints = Fingerprints(settings.identity, rank)
    questions: Questions
    prepare: Callable[[Layout], None]
    sums: ExactSum
    if device is None:
        exact, to_owners, of_owners = communicators
        questions, sums = RankAgreement((exact, settings.ranks), hint=hint), exact.sum_
        codec = RankCodec(settings, rank, _core.ThreadPool(threads) if threads > 1 else None)
        messages = RankMessages(to_owners, of_owners, recorder, settings.ranks, _CPU)
        tools = RankTools(codec, messages, fingerprints, questions, recorder, clock)
        prepare = partial(prepare_rank_pieces, tools)
    else:
        [own] = communicators
        layouts = Questions() if of_layouts is None else RankAgreement((of_layouts, settings.ranks), hint=hint)
        questions = agreement = DeviceAgreement(fingerprints, device, own, layouts)
        sums = agreement.spoiled(own.sum_)
        messages = RankMessages(own, own, recorder, settings.ranks, device)
        prepare = partial(prepare_device_pieces, DeviceTools(settings, rank, messages, agreement, recorder))
    return FlatEngine(
        policy,
        _place(device, recorder),
        EngineState(rank, settings.ranks, settings.settings, recorder=recorder),
        prepare,
        fingerprints=fingerprints,
        exact=sums,
        questions=questions,
        alone=settings.ranks == 1 and (device is None or not (compress_alone or sharded)),
        clock=clock,
        leave=leave,
    )


def _place(device: torch.device | None, recorder: StatsRecorder) -> Place:
    if device is None:
        return Place(_CPU, SideStream(_CPU), in_stream=False, staging=lambda gradient: make_staging(gradient, recorder))
    stream = SideStream(device)

    def staging(gradient: Tensor) -> Staging | None:
        return None if gradient.device == device else make_device_staging(gradient, stream, recorder)

    return Place(device, stream, in_stream=True, staging=staging)
