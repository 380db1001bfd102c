"""What engines on a device have in common: their state lies there, and is asked for on the engine's stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from byteps_thc.errors import InputError, TransportError
from byteps_thc.pipeline.device.agreement import DeviceAgreement
from byteps_thc.pipeline.device.exchange import DeviceTools, Workspace
from byteps_thc.pipeline.device.figures import DeviceFigures
from byteps_thc.pipeline.device.memory import DeviceMemory, DeviceRollback
from byteps_thc.pipeline.device.recording import Record
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine import EngineBase
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.in_flight import Awaited, InFlight
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.statistics import CompressionStats, StatsRecorder
from byteps_thc.transport.communicator import Communicator

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor


class StatefulDeviceEngine(EngineBase):
    """An engine but for what it reduces.

    compressor: with the transport's table, on the device. communicator: of tensors there; nobody else's. Deadlines are
    the communicator's own: with NCCL its watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). record: see
    recording.py.
    """

    def __init__(
        self,
        compressor: GpuCompressor,
        policy: CompressionPolicy,
        communicator: Communicator,
        record: Record | None = None,
    ) -> None:
        self.workers, self.worker = compressor.workers, compressor.worker
        self.config, self.policy = compressor.config, policy
        self._device = compressor.device
        rollback = DeviceRollback(self._device)
        recorder = StatsRecorder()
        self._state = EngineState(
            self.worker,
            self.workers,
            self.config.model_dump(),
            wrap=torch.from_numpy,
            stores={"residuals": Residuals(DeviceMemory(self._device))},
            recorder=recorder,
            rollback=rollback,
        )
        workspace = Workspace(compressor.resolved, self._device)
        self._agreement = DeviceAgreement(compressor.resolved, self.worker, self._device)
        self._tools = DeviceTools(compressor, communicator, recorder, rollback, workspace, self._agreement, record)
        self._ended: InputError | None = None
        self._figures = DeviceFigures(recorder)
        self._stream = SideStream(self._device)
        self._in_flight: InFlight[Awaited] = InFlight()

    @property
    def device(self) -> torch.device:
        """Where it works."""
        return self._device

    @override
    def start_step(self) -> None:
        """As Engine's. InputError when ranks have averaged different gradients; on a GPU it may come later."""
        with self._stream.behind_current():
            self._end_on(self._agreement.look())
        self._state.start_step()
        self._figures.start_step()

    @override
    def protect_step(self) -> None:
        with self._stream.behind_current():
            self._state.rollback.begin()

    @override
    def restore_residuals(self) -> None:
        with self._stream.behind_current():
            self._state.rollback.restore()

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._agreement.use_loss_scale(scale)

    @override
    def scale_residuals(self, factor: float) -> None:
        with self._stream.behind_current():
            self._state.scale(factor)

    @override
    def state_dict(self) -> dict[str, Any]:
        """As Engine's; it waits for the device. InputError, once, when ranks have averaged different gradients."""
        with self._stream.behind_current():
            self._require_agreement()
            return self._state.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._stream.behind_current():
            self._state.load_state_dict(state)
        self._forget_layouts()

    @override
    def statistics(self) -> CompressionStats:
        """As Engine's; it waits for the device, and raises what state_dict() does. Times are 0: not measured."""
        with self._stream.behind_current():
            self._require_agreement()
            self._figures.read()
            return self._state.statistics()

    @override
    def close(self) -> None:
        self._in_flight.fail(TransportError("the engine was closed"))

    def _require_agreement(self) -> None:
        # One may look at an engine that has ended: its residuals are those from before.
        if self._ended is None:
            self._end_on(self._agreement.wait())

    def _end_on(self, error: InputError | None) -> None:
        self._ended = self._ended or error
        if error is not None:
            self._in_flight.fail(error)
            raise error

    @abstractmethod
    def _forget_layouts(self) -> None:
        """Let go of what was made with residuals that are not the engine's any more."""
