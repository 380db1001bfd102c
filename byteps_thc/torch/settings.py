"""Settings of THC for BytePS: arguments of Compression.thc, or else environment variables."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, cast

import torch
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from byteps_thc._base.environment import variable, whole_number
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import Settings
from byteps_thc._base.wire.layout import MAX_JOB_ID, MAX_WORKERS
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.network_settings import (
    DpdkConfig,
    NetworkSettings,
    Quorum,
    UdpConfig,
    backend_from_environment,
    network_from_environment,
    nth_socket,
    resolve_quorum,
    servers_of,
    settings_of,
)
from byteps_thc._net.run import run_of_scheduler
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes

_DEFAULT_LANES = 2


def _from_list(value: object) -> object:
    if isinstance(value, str):
        return servers_of(value)
    return tuple(value) if isinstance(value, Sequence) else value


class ThcCompression(Settings, NetworkSettings):
    """Settings of Compression.thc(codes, ...), the same on all workers.

    Default of an argument: the environment variable, then the default below. Settings of NetworkSettings apply to the
    network route.

    backend: lane k binds the k-th port above the given port. A DPDK device serves one lane.
    run: default: THC_RUN, or the address of BytePS's scheduler.

    Raises ConfigurationError for invalid settings.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    codes: ServerCodes = Field(default_factory=ServerCodes.from_environment, kw_only=False)
    """A ServerCodes. Default: THC_CONFIG, or its defaults."""
    route: Literal["network", "servers"] = "network"
    """Route of codes: "network" (thc-ps or a switch) or "servers" (the servers of BytePS)."""
    servers: Annotated[Sequence[str], BeforeValidator(_from_list)] = ()
    """Network route: addresses, "HOST" or "HOST:PORT" each, of all thc-ps or of one switch."""
    job: int = Field(default=1, ge=0, lt=MAX_JOB_ID + 1)
    """Network route: number of the first lane's job on the servers. Lanes use job, job + 1, ..."""
    lanes: int | None = Field(default=None, ge=1, le=16)
    """Streams of gradients, 1 to 16, each a job on the servers. None: 2, with DPDK 1.
    Layers that are needed first have their own lane."""
    policy: CompressionPolicy = Field(default_factory=CompressionPolicy)
    """A CompressionPolicy. Default: THC_POLICY, or its defaults."""
    grad_scaler: Any = None
    """The torch GradScaler. Residuals follow its scale, and skipped steps keep them."""
    log_every: int = Field(default=0, ge=0)
    """Steps between lines of statistics in the log of rank 0. 0: none."""

    if not TYPE_CHECKING:  # as in Settings

        def __init__(self, codes=None, **settings):
            if codes is not None:
                settings["codes"] = codes
            if isinstance(codes, ServerCodes):
                codes.check_environment()
            if settings.get("policy") is None or isinstance(settings["policy"], CompressionPolicy):
                settings["policy"] = CompressionPolicy.chosen(settings.get("policy"))
            found = _from_environment()
            try:
                super().__init__(**found | settings)
            except ConfigurationError as error:
                unset = (name for name in ("run", "route", "log_every") if name in found and name not in settings)
                if names := [f"THC_{name.upper()}" for name in unset if f"{name}: " in str(error)]:
                    raise ConfigurationError(f"{error} (from {' and '.join(names)})") from None
                raise

    @field_validator("quorum", mode="before")
    @classmethod
    def _check_quorum(cls, quorum: object) -> object:
        """Refuse a quorum that is wrong for any number of workers, because the number is unknown here."""
        resolve_quorum(cast(Quorum, quorum), MAX_WORKERS)
        return quorum

    @model_validator(mode="after")
    def _check(self) -> "ThcCompression":
        if self.route == "network" and not self.servers:
            raise ValueError("the network route needs addresses of thc-ps: pass servers=[...], or set THC_SERVERS")
        if isinstance(self.backend, DpdkConfig) and self.lane_count > 1:
            raise ValueError(f"{self.lane_count} lanes cannot share a DPDK device: pass lanes=1")
        return self

    @property
    def lane_count(self) -> int:
        """Number of lanes, with the default resolved."""
        return self.lanes or (1 if isinstance(self.backend, DpdkConfig) else _DEFAULT_LANES)

    def network_of_lane(self, lane: int) -> NetworkConfig:
        """Return the servers of a lane on the network route."""
        run = run_of_scheduler() if self.run is None else self.run
        of_lane = {"codes": self.codes, "backend": self._backend_after(lane), "run": run}
        return NetworkConfig(self.servers, self.job + lane, **settings_of(self) | of_lane)

    def jobs_after(self, first: int) -> list[Hashable]:
        """Return the lanes' jobs on the network route, after `first` other jobs."""
        return [("job", self.job + first + lane) for lane in range(self.lane_count)]

    def sockets_after(self, first: int) -> list[Hashable]:
        """Return the lanes' local addresses after `first` other sockets; none if the kernel chooses the ports."""
        if not isinstance(self.backend, UdpConfig) or self.backend.local == nth_socket(self.backend, 1).local:
            return []
        sockets = range(first, first + self.lane_count)
        return [("socket", nth_socket(self.backend, socket).local) for socket in sockets]

    def moved(self, jobs: int, sockets: int) -> "ThcCompression":
        """Return the settings with higher job numbers and local ports.

        jobs: number to add to the job.
        sockets: number to add to the local port.

        Raises ConfigurationError if a job number is too high.
        """
        if self.job + jobs + self.lane_count - 1 > MAX_JOB_ID:
            raise ConfigurationError(
                f"no {self.lane_count} free job number(s) from {self.job} to {MAX_JOB_ID}: choose a smaller THC_JOB"
            )
        return self.model_copy(update={"job": self.job + jobs, "backend": self._backend_after(sockets)})

    def _backend_after(self, sockets: int) -> Literal["udp"] | UdpConfig | DpdkConfig:
        return nth_socket(self.backend, sockets) if isinstance(self.backend, UdpConfig) else self.backend


def _from_environment() -> dict[str, Any]:
    texts = {name: variable(name.upper()) for name in ("job", "run", "route", "log_every")}
    settings = network_from_environment() | {name: text for name, text in texts.items() if text}
    if "job" in settings:
        settings["job"] = whole_number("THC_JOB", settings["job"], MAX_JOB_ID)
    if backend := backend_from_environment():
        settings["backend"] = backend
    return settings


class GradientCompression(Protocol):
    """BytePS's interface: one tensor at a time, without state. Classes and instances both have it."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the payload, and the context for decompress()."""

    def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor from the payload."""


class NoneCompressor:
    """Gradients travel as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ARG004  the interface
        """Return the tensor itself."""
        return tensor


class Fp16Compressor:
    """Floating-point gradients travel, and are added up, as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor as float16, and the dtype it had."""
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """Return the tensor in the dtype it had."""
        return tensor.to(ctx)


class Compression:
    """Compressions: `none` and `fp16` as in byteps.torch; `thc(...)` makes a ThcCompression."""

    none = NoneCompressor
    fp16 = Fp16Compressor
    thc = ThcCompression
