"""The reducers of a DistributedOptimizer: BytePS's push_pull, or THC over one of the two routes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._engine.parameters import DTYPES, real_view, weights_of_all_embeddings
from byteps_thc._engine.saved_state import require_as_saved, require_sound, sealed
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._engine.steps import Steps, saved_scale
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.library import skip_shutdown_at_exit
from byteps_thc._net.byteps.push_pull import Handle, declare, push_pull_async_inplace, synchronize
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.transport import PlainCollective
from byteps_thc.torch.lanes.engines import make_engines
from byteps_thc.torch.lanes.lane import BytepsSum, LaneSender, make_lanes
from byteps_thc.torch.optimizer.place import NamedParameter
from byteps_thc.torch.settings import GradientCompression, NoneCompressor, ThcCompression


class PlainReducer:
    """One push_pull per parameter. Layers that the next forward pass needs first have the highest priority."""

    def __init__(self, parameters: Sequence[NamedParameter], compression: GradientCompression) -> None:
        self._compression = compression
        self._pushes: list[tuple[Tensor, Handle, Any, torch.dtype]] = []  # with context and dtype of the payload
        self._recorder = StatsRecorder()
        self._in_step = False
        for name in sorted(parameter.name for parameter in parameters):
            declare(f"Gradient.{name}")

    def push(self, parameter: NamedParameter) -> None:
        """Start averaging parameter.tensor.grad, in use until finish(); once a round, by one thread at a time."""
        if not self._in_step:
            self._in_step = True
            self._recorder.step_began()
        assert parameter.tensor.grad is not None
        gradient = real_view(parameter.tensor.grad)
        compressed, context = self._compression.compress(gradient)
        # BytePS lacks bfloat16, and requires contiguous memory.
        travels = (compressed.float() if compressed.dtype == torch.bfloat16 else compressed).contiguous()
        handle = push_pull_async_inplace(
            travels, average=True, name=f"Gradient.{parameter.name}", priority=-parameter.index
        )
        self._pushes.append((gradient, handle, context, compressed.dtype))
        self._recorder.add_gradient(uncompressed=gradient.numel())
        self._recorder.add(sent_bytes=travels.nbytes, received_bytes=travels.nbytes)

    def finish(self) -> None:
        """Wait until every pushed gradient is the average. All parameters have been pushed."""
        for gradient, handle, context, dtype in self._pushes:
            average = self._compression.decompress(synchronize(handle).to(dtype), context)
            if average.data_ptr() != gradient.data_ptr():
                gradient.copy_(average)
        self._pushes.clear()
        self._in_step = False

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's part of a checkpoint."""
        return {}  # these compressions keep no state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigurationError unless the state is empty."""
        if state:
            raise ConfigurationError("this state is of Compression.thc; Compression.none and fp16 have none")

    def statistics(self) -> CompressionStats:
        """Return statistics of compression."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Do nothing: BytePS itself ends with shutdown()."""


class CompressedReducer:
    """Compresses with THC, and lets BytePS send gradients of other dtypes. Raises make_engines()'s errors."""

    def __init__(self, parameters: Sequence[NamedParameter], settings: ThcCompression, replicas: Replicas) -> None:
        self._recorder = StatsRecorder(PlainCollective.servers(process.workers()))
        compressed = [p for p in parameters if p.tensor.dtype in DTYPES]
        others = [p for p in parameters if p.tensor.dtype not in DTYPES]
        self._plain = PlainReducer(others, NoneCompressor)
        settings = _with_embeddings(settings, parameters)
        lanes = make_lanes(compressed, settings.lane_count, settings.policy)
        self._sums = [BytepsSum(lane, settings.policy.deadline_s) for lane in lanes]
        engines = make_engines(settings, lanes, self._sums, self._recorder)
        self._senders = [LaneSender(lane, engine) for lane, engine in zip(lanes, engines, strict=True)]
        self._sender_of = {p.name: s for s in self._senders for buffer in s.lane.buffers for p in buffer.parameters}
        self._in_step = False
        self._steps = Steps(
            engines,
            settings.grad_scaler,
            sees_all=not others,
            log_every=settings.log_every,
            rank=process.rank(),
            network=settings.network_of_lane(0) if settings.route == "network" else None,
            workers=process.workers(),
            replicas=replicas,
            statistics=self.statistics,
        )

    def push(self, parameter: NamedParameter) -> None:
        """As PlainReducer.push()."""
        with _skipping_shutdown_on_failure():
            if not self._in_step:
                self._start_step()
            sender = self._sender_of.get(parameter.name)
            if sender is None:
                self._plain.push(parameter)
            else:
                sender.ready(parameter)

    def finish(self) -> None:
        """End the round. Raises DeadlineError, TransportError or RestartError, and is then closed."""
        with _skipping_shutdown_on_failure():
            for sender in self._senders:
                sender.finish()
            self._plain.finish()
        self._in_step = False
        self._steps.log()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of an engine (Engine.state_dict), the same for any number of lanes, with the loss scale."""
        self._steps.scaling.undo_skipped_step()
        states = [sender.engine.state_dict() for sender in self._senders]
        merged: dict[str, Any] = dict(states[0])
        merged["round"] = max(state["round"] for state in states)
        merged["residuals"] = {name: value for state in states for name, value in state["residuals"].items()}
        return sealed(merged | {"loss_scale": self._steps.scaling.scale})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state_dict() of this worker, with any number of lanes; ConfigurationError if it does not fit."""
        parameters = [p for s in self._senders for buffer in s.lane.buffers for p in buffer.parameters]
        sizes = {p.name: p.tensor.numel() for p in parameters}
        require_sound(state, sizes)
        require_as_saved(state)
        scale = saved_scale(state.get("loss_scale"))
        residuals = state.get("residuals", {})
        for sender in self._senders:
            names = {p.name for buffer in sender.lane.buffers for p in buffer.parameters}
            own = {name: value for name, value in residuals.items() if name in names}
            sender.engine.load_state_dict(sealed({**state, "residuals": own} if "residuals" in state else state))
        self._steps.count = state["step"]
        self._steps.scaling.scale = scale

    def statistics(self) -> CompressionStats:
        """Return statistics of compression."""
        for sender in self._senders:
            sender.engine.statistics()  # adds its residuals to the recorder of all lanes
        return replace(self._recorder.snapshot(), steps=self._steps.count)  # each lane has counted the step

    def close(self) -> None:
        """Leave the network. May be called again."""
        for sender in self._senders:
            sender.engine.close()

    def _start_step(self) -> None:
        self._in_step = True
        for exact_sum in self._sums:
            exact_sum.start_step()
        self._steps.begin()


def _with_embeddings(settings: ThcCompression, parameters: Sequence[NamedParameter]) -> ThcCompression:
    """Return the settings with the embeddings in `policy.rows`; warn of policy names without a parameter."""
    rank = process.rank()
    settings.policy.warn_of_unmatched((parameter.name for parameter in parameters), rank)
    weights = weights_of_all_embeddings()
    policy = settings.policy.with_rows(parameter.name for parameter in parameters if id(parameter.tensor) in weights)
    each = ((own.name, own.tensor.numel(), policy.row_elements(own.name, own.tensor.shape)) for own in parameters)
    policy.warn_if_all_travel_exactly(each, rank)
    return settings.model_copy(update={"policy": policy})


@contextmanager
def _skipping_shutdown_on_failure() -> Iterator[None]:
    """After a failure workers cannot resume: the end of this process does not wait for the others."""
    try:
        yield
    except ThcError:
        skip_shutdown_at_exit()
        raise
