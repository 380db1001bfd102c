"""The engines of the lanes: in the local root of a worker, and in the other processes of its host."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc.compressor import Compressor
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.thc_engine import ThcEngine
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.torch.hosts.engine import HostEngine
from byteps_thc.torch.hosts.group import open_host_groups
from byteps_thc.torch.hosts.non_root_engine import NonRootEngine
from byteps_thc.torch.hosts.worker_engine import WorkerEngine
from byteps_thc.torch.lanes.clock import LaneClock, PrioritySemaphore
from byteps_thc.torch.lanes.exact_sum import BytepsSum
from byteps_thc.torch.lanes.plan import Lane
from byteps_thc.torch.lanes.transports import open_transports
from byteps_thc.torch.settings import ThcCompression
from byteps_thc.transport.byteps import process


def make_engines(
    settings: ThcCompression, lanes: Sequence[Lane], sums: Sequence[BytepsSum], recorder: StatsRecorder
) -> list[Engine]:
    """Return an engine for each lane; by all processes of all workers, with the same lanes.

    Raises what the route raises, and ConfigurationError for BytePS's servers with several processes per worker.
    """
    processes = process.local_size()
    if processes == 1:
        return list(_thc_engines(settings, lanes, sums, recorder))
    if settings.route == "servers":
        raise ConfigurationError(
            f"route='servers' needs one BytePS worker per GPU, and this worker has {processes} processes: start "
            "bpslaunch once per GPU, with NVIDIA_VISIBLE_DEVICES naming that GPU and a DMLC_WORKER_ID of its own, or "
            "use the network route"
        )
    groups = open_host_groups(len(lanes), settings.policy.deadline_s)
    engines: Sequence[WorkerEngine]
    if process.local_rank() == 0:
        engines = _thc_engines(settings, lanes, sums, recorder)
    else:
        engines = [NonRootEngine(settings.policy, exact, recorder) for exact in sums]
    workers, worker = process.workers(), process.worker()
    return [
        HostEngine(group, engine, workers=workers, worker=worker) for group, engine in zip(groups, engines, strict=True)
    ]


def _thc_engines(
    settings: ThcCompression, lanes: Sequence[Lane], sums: Sequence[BytepsSum], recorder: StatsRecorder
) -> list[ThcEngine]:
    compressor = Compressor(
        settings.config,
        workers=process.workers(),
        worker=process.worker(),
        threads=settings.policy.thread_count(process.local_size()),
    )
    transports = open_transports(settings, lanes, compressor, recorder)
    clock, cpus = WorkClock(), PrioritySemaphore(len(lanes))
    rollback = Rollback()  # a gradient that is not finite ends the step of all lanes
    return [
        ThcEngine(
            compressor,
            settings.policy,
            transport=transport,
            exact=exact,
            recorder=recorder,
            clock=LaneClock(clock, cpus, lane.number),
            rollback=rollback,
        )
        for lane, transport, exact in zip(lanes, transports, sums, strict=True)
    ]
