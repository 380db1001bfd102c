"""Any baseline in the engine of THC (pipeline/flat_engine.py)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc.baselines.config import BaselineConfig
from byteps_thc.baselines.dgc import Dgc
from byteps_thc.baselines.scheme import BaselineFigures, BaselineScheme
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.agreement import SAME_MODEL, SAME_ROWS, Questions, RankAgreement
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.flat_engine import FlatEngine, Place
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.staging import Staging, make_staging
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.communicator import Waitable
from byteps_thc.transport.groups import Communicators
from byteps_thc.transport.handshake import introduce
from byteps_thc.transport.recorder import PlainCollective

_CPU = torch.device("cpu")


def baseline_engine(
    process_group: dist.ProcessGroup,
    config: BaselineConfig,
    policy: CompressionPolicy,
    *,
    sharded: bool = False,
    communicators: Communicators | None = None,
) -> FlatEngine:
    """Return an engine that averages gradient buffers with a baseline; collective.

    process_group: gloo, or NCCL, for which gradients are staged through the host. sharded: for a reduce-scatter; not
    with Dgc, which applies the optimizer's momentum to all gradients of a parameter, while those that travel
    uncompressed there (in warm-up steps, of unused parameters) are averaged by torch. ConfigurationError naming what
    differs between the ranks, or what does not work.

    NaN and infinity reach the averages of all ranks, and what travelled with them leaves no residual. With one worker
    nothing is sent or compressed, but Dgc applies its momentum.
    """
    workers, worker = process_group.size(), process_group.rank()
    if sharded and isinstance(config, Dgc):
        raise ConfigurationError(
            f"{type(config).__name__} does not work with FSDP2's reduce-scatter: use TopK, another baseline or a "
            "ThcConfig here, or DDP (byteps_thc.ddp.compress)"
        )
    asked, sent, flags = None, None, None
    questions = Questions()
    communicators = communicators or Communicators(process_group, policy.deadline_s)
    if workers > 1 or sharded:
        engine = {"engine": "reduce-scatter"} if sharded else {}
        settings = engine | config.shared_settings() | policy.shared_settings()
        introduce(communicators.for_questions().gather, settings)
        # One per thread: the operations of a communicator start in the order of its thread, the same on all ranks.
        asked, sent, flags = communicators.of_host(3)
        questions = RankAgreement((asked, workers), hint=SAME_ROWS if sharded else SAME_MODEL)
    recorder, clock = StatsRecorder(PlainCollective.among_ranks(workers, sharded=sharded)), WorkClock()
    figures = BaselineFigures(recorder, clock)
    scheme = BaselineScheme(
        config,
        policy,
        worker=worker,
        workers=workers,
        communicator=sent,
        flags=flags,
        recorder=recorder,
        figures=figures,
    )
    state = EngineState(
        worker,
        workers,
        config.shared_settings(),
        wrap=torch.from_numpy,
        stores=scheme.memory.stores,
        recorder=recorder,
        rollback=scheme.memory.rollback,
    )

    def staging(gradient: Tensor) -> Staging | None:
        return make_staging(gradient, recorder)

    return FlatEngine(
        config,
        policy,
        Place(_CPU, SideStream(_CPU), in_stream=False, staging=staging),
        state,
        scheme,
        figures=figures,
        exact=_alone if asked is None else asked.sum_,
        questions=questions,
        asks_first=True,
        clock=clock,
        leave=communicators.close,
    )


def _alone(tensor: Tensor) -> Waitable:
    raise AssertionError(f"{tensor.numel()} elements, and nobody to add them to")
