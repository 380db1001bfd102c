"""The engines of the lanes: in the process that speaks for a worker, and in the others of its host."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc.engines.engine import Engine
from byteps_thc.engines.step_backup import StepBackup
from byteps_thc.engines.thc_engine import ThcEngine
from byteps_thc.engines.work_clock import WorkClock
from byteps_thc.errors import ConfigurationError
from byteps_thc.statistics import StatsRecorder
from byteps_thc.torch import operations
from byteps_thc.torch.byteps_sum import BytepsSum
from byteps_thc.torch.host_engine import HostEngine
from byteps_thc.torch.host_group import open_host_groups
from byteps_thc.torch.lane_clock import LaneClock, Turns
from byteps_thc.torch.lanes import Lane
from byteps_thc.torch.routes import open_transports
from byteps_thc.torch.settings import ThcCompression
from byteps_thc.torch.silent_engine import SilentEngine


def make_engines(
    settings: ThcCompression, lanes: Sequence[Lane], sums: Sequence[BytepsSum], recorder: StatsRecorder
) -> list[Engine]:
    """Return an engine for each lane; by all processes of all workers, with the same lanes.

    Raises what the route raises, and ConfigurationError for BytePS's servers with several processes per worker.
    """
    processes = operations.local_size()
    if processes == 1:
        return list(_thc_engines(settings, lanes, sums, recorder))
    if settings.route == "servers":
        raise ConfigurationError(
            f"route='servers' needs one BytePS worker per GPU, and this worker has {processes} processes: start "
            "bpslaunch once per GPU, with NVIDIA_VISIBLE_DEVICES naming that GPU and a DMLC_WORKER_ID of its own, or "
            "use the network route"
        )
    groups = open_host_groups(len(lanes), settings.policy.deadline_s)
    engines: Sequence[ThcEngine | SilentEngine]
    if operations.local_rank() == 0:
        engines = _thc_engines(settings, lanes, sums, recorder)
    else:
        engines = [SilentEngine(settings.policy, exact, recorder) for exact in sums]
    workers, worker = operations.workers(), operations.worker()
    return [
        HostEngine(group, engine, workers=workers, worker=worker) for group, engine in zip(groups, engines, strict=True)
    ]


def _thc_engines(
    settings: ThcCompression, lanes: Sequence[Lane], sums: Sequence[BytepsSum], recorder: StatsRecorder
) -> list[ThcEngine]:
    workers, worker = operations.workers(), operations.worker()
    transports = open_transports(settings, lanes, worker, workers, recorder)
    clock, turns = WorkClock(), Turns(len(lanes))
    resolved = settings.config.resolve(workers)
    backup = StepBackup()  # a gradient that is not finite spoils the step of all lanes
    return [
        ThcEngine(
            resolved,
            settings.policy,
            worker=worker,
            transport=transport,
            exact=exact,
            recorder=recorder,
            clock=LaneClock(clock, turns, lane.number),
            backup=backup,
        )
        for lane, transport, exact in zip(lanes, transports, sums, strict=True)
    ]
