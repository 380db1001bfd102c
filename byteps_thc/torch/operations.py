"""BytePS's operations with the signatures of byteps.torch that _net/byteps lacks."""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.push_pull import Handle, push_pull_async_inplace, synchronize
from byteps_thc._net.byteps_servers.transport import prepare_environment
from byteps_thc._net.replicas import Replicas, put_bytes
from byteps_thc._own_loop.optimizer_state import broadcast_optimizer
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc.torch.settings import Compression, GradientCompression


def init(lazy: bool = True) -> None:
    """Start BytePS in this process, with the role and peers of bpslaunch's environment.

    lazy: connect to the servers with the first push_pull, default True; False: now.

    This, shutdown, suspend and resume raise DeadlineError if peers do not answer within THC_DEADLINE_S (default 600)
    seconds.
    """
    with suppress(ConfigurationError):  # the servers route checks the environment when it is chosen
        prepare_environment(ServerCodes.from_environment().resolve(int(os.environ.get("DMLC_NUM_WORKER", "1"))))
    process.init(lazy)


def push_pull_async(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Start adding up a tensor over all workers, and keep the tensor unchanged.

    tensor: as in push_pull_async_inplace.
    average: divide by size(), default True.
    name: default: the number of the call.
    version: as in BytePS, default 0.
    priority: default 0.
    """
    # BytePS 0.2.5 leaves the output of CPU tensors uninitialised unless it is the input.
    return push_pull_async_inplace(tensor.detach().clone(), average, name, version, priority)


def push_pull_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Tensor:
    """Add up a tensor over all workers, in place, and return it.

    tensor: as in push_pull_async_inplace.
    average: divide by size(), default True.
    name: default: the number of the call.
    version: as in BytePS, default 0.
    priority: default 0.
    """
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: GradientCompression = Compression.none,
) -> Tensor:
    """Return the sum or average of a tensor over all workers; gradients flow through it.

    tensor: as in push_pull_async_inplace.
    average: divide by size(), default True.
    name: required, as in BytePS.
    version: as in BytePS, default 0.
    priority: default 0.
    compression: Compression.none (default) or Compression.fp16.

    Raises InputError without a name, and ConfigurationError for THC, which requires a DistributedOptimizer.
    """
    if name is None:
        raise InputError("push_pull needs name=..., the same on all workers")
    if not hasattr(compression, "compress"):
        raise ConfigurationError(
            "push_pull takes Compression.none or fp16: pass Compression.thc to DistributedOptimizer"
        )
    compressed, context = compression.compress(tensor)
    summed = _PushPull.apply(compressed, average, name, version, priority)  # type: ignore[no-untyped-call]
    return compression.decompress(summed, context)


class _PushPull(torch.autograd.Function):
    """The gradient of a sum over the workers is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, average: bool, name: str, version: int, priority: int) -> Tensor:
        ctx.arguments = average, name, version, priority
        return synchronize(push_pull_async(tensor.contiguous(), average, name, version, priority))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        average, name, version, priority = ctx.arguments
        pushed = push_pull_async(gradients[0].contiguous(), average, f"{name}.gradient", version, priority)
        return synchronize(pushed), None, None, None, None


_TENSORS_IN_FLIGHT = 16
_CHUNK_BYTES = 4 << 20
_SMALLEST_CHUNK_BYTES = 4096


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int, prefix: str = "Parameter.") -> None:
    """Copy tensors from the process `root_rank` to all others, bit for bit.

    params: model.state_dict(), or a list of tensors or (name, tensor) pairs, such as list(model.named_parameters()),
        with the same names and shapes in all processes. Other values are ignored.
    root_rank: rank of the source.
    prefix: prefix of the pushed names, default "Parameter.".

    Raises InputError for unsupported arguments.
    """
    in_flight: deque[tuple[Tensor, Handle]] = deque()
    for name, tensor in _named_tensors(params):
        if tensor.numel() == 0:
            continue
        if process.rank() == root_rank:
            data = tensor.detach().contiguous().clone().view(-1).view(torch.uint8)
        else:
            data = torch.zeros(tensor.nbytes, dtype=torch.uint8, device=tensor.device)
        in_flight.append((tensor, push_pull_async_inplace(data, average=False, name=prefix + name)))
        if len(in_flight) == _TENSORS_IN_FLIGHT:
            oldest, handle = in_flight.popleft()
            put_bytes(synchronize(handle), oldest)
    for tensor, handle in in_flight:
        put_bytes(synchronize(handle), tensor)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    """Copy the optimizer state and hyperparameters from the process `root_rank` to all others, bit for bit.

    optimizer: any torch optimizer with the same parameter groups in all processes. Tensors, numbers, tuples and None
        keep their types.
    root_rank: rank of the source.
    prefix: prefix of the pushed names, default "Parameter.".
    """
    broadcast_optimizer(optimizer, BytepsReplicas(root_rank, prefix))


class BytepsReplicas(Replicas):
    """All processes of a BytePS job, with `root_rank` as root. prefix: of the pushed names."""

    def __init__(self, root_rank: int = 0, prefix: str = "Parameter.") -> None:
        self.rank = self.world_rank = process.rank()
        self.size = process.size()
        self.is_root = self.rank == root_rank
        self._root_rank, self._prefix = root_rank, prefix

    @override
    def gather(self, text: bytes) -> list[bytes]:
        lengths = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        lengths[self.rank] = len(text)
        if self.size > 1:
            push_pull_inplace(lengths, average=False, name=f"{self._prefix}gather.sizes")
        # Few lengths, because BytePS keeps memory for each.
        length = max(_SMALLEST_CHUNK_BYTES, 1 << (int(lengths.max()) - 1).bit_length())
        texts = torch.zeros(self.size, length, dtype=torch.uint8, device="cpu")
        texts[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if self.size > 1:
            push_pull_inplace(texts.view(-1), average=False, name=f"{self._prefix}gather.{length}")
        sizes = lengths.tolist()
        return [row[:size].numpy().tobytes() for row, size in zip(texts, sizes, strict=True)]

    @override
    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        if self.size > 1:
            broadcast_parameters(tensors, self._root_rank, self._prefix)

    @override
    def broadcast_bytes(self, data: bytes) -> bytes:
        if self.size == 1:
            return data
        name, source, received = f"{self._prefix}optimizer_state", memoryview(data), bytearray()
        header = torch.tensor([len(data) if self.is_root else 0], dtype=torch.int64, device="cpu")
        total = int(push_pull_inplace(header, average=False, name=f"{name}.size").item())
        while len(received) < total:  # in chunks of few sizes, because BytePS fixes a name's size
            left = total - len(received)
            size = _CHUNK_BYTES if left >= _CHUNK_BYTES else max(1 << (left - 1).bit_length(), _SMALLEST_CHUNK_BYTES)
            chunk = torch.zeros(size, dtype=torch.uint8, device="cpu")
            if self.is_root:
                part = source[len(received) : len(received) + size]
                chunk[: len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            push_pull_inplace(chunk, average=False, name=f"{name}.{size}")
            received += chunk[: min(size, left)].numpy().tobytes()
        return bytes(received)


def _named_tensors(params: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str, Tensor]]:
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise InputError(f"params must be a state_dict or a list of tensors, not a {type(params).__name__}")
    else:
        pairs = [p if isinstance(p, tuple) else (f"unnamed.{i}", p) for i, p in enumerate(params)]
    return [(name, value) for name, value in pairs if isinstance(value, Tensor)]
