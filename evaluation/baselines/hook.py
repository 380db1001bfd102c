"""A codec as DDP's communication hook: an all-gather of payloads, which every rank decodes.

ddp.register_comm_hook(CodecState(TopK(ratio=0.1), workers=4), codec_hook)
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from baselines.codec import EncodeContext, VectorSpec
from baselines.config import CodecConfig

#: Parameters with fewer elements are summed in fp32, as byteps_thc does by default.
BYPASS_ELEMENTS = 1024


class CodecState:
    """State of codec_hook from step to step. Residuals of buckets that DDP lays out anew start at zero."""

    def __init__(self, config: CodecConfig, workers: int) -> None:
        self.codec, self.memory, self.workers = config.codec(), config.memory(workers), workers
        self.round = self.step = 0


def codec_hook(state: CodecState, bucket: dist.GradBucket) -> Future[Tensor]:
    """Replace a bucket by the average of all ranks' payloads."""
    gradient = bucket.buffer()
    parts = gradient.split([parameter.numel() for parameter in bucket.parameters()])
    large = [part for part in parts if part.numel() >= BYPASS_ELEMENTS]
    small = [part for part in parts if part.numel() < BYPASS_ELEMENTS]
    context = EncodeContext(worker=dist.get_rank(), round=state.round, step=state.step)
    state.round, state.step = state.round + 1, state.step + bucket.is_last()
    sums = torch.cat(small) if small else gradient.new_zeros(0)
    works = [dist.all_reduce(sums, async_op=True)] if small else []
    if large:
        spec = VectorSpec.of(f"{bucket.index()} of {gradient.numel()}", {str(i): len(p) for i, p in enumerate(large)})
        sent = state.memory.compensate(torch.cat(large), spec)
        payload = state.codec.encode(sent.vector, spec, context)
        payloads = payload.new_empty(state.workers * payload.numel())
        works.append(dist.all_gather_into_tensor(payloads, payload, async_op=True))

    def finish(_: object) -> Tensor:
        if small:
            _write(small, sums / state.workers)
        if large:
            vectors = [state.codec.decode(each, spec, context.step) for each in payloads.chunk(state.workers)]
            _write(large, state.codec.combine(vectors))
            state.memory.keep(sent, vectors[context.worker])
        return gradient

    futures: list[Future[object]] = [work.get_future() for work in works]
    return torch.futures.collect_all(futures).then(finish)


def _write(parts: list[Tensor], values: Tensor) -> None:
    for part, own in zip(parts, values.split([len(part) for part in parts]), strict=True):
        part.copy_(own)
