"""What a worker keeps between steps, against the papers' equations written out per coordinate."""

from __future__ import annotations

import math

import pytest
import torch
from baselines import Dgc, SignSgd, TopK
from baselines.codec import EncodeContext, VectorSpec
from baselines.config import CodecConfig

SPEC = VectorSpec.of("bucket", {"a": 40, "b": 60})


def gradients(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SPEC.size, generator=generator) for _ in range(steps)]


def send(scheme: CodecConfig, memory, gradient: torch.Tensor, step: int, *, keep: bool = True) -> torch.Tensor:
    """One worker's step; return what was sent."""
    codec, context = scheme.codec(), EncodeContext(worker=0, round=step, step=step)
    state = memory.compensate(gradient, SPEC)
    sent = codec.decode(codec.encode(state.vector, SPEC, context), SPEC, step)
    if keep:
        memory.keep(state, sent)
    return sent


@pytest.mark.parametrize("scheme", [TopK(ratio=0.1), SignSgd()], ids=repr)
def test_error_feedback_loses_nothing(scheme: CodecConfig) -> None:
    """What was sent and what is kept add up to all gradients."""
    memory, steps = scheme.memory(workers=4), gradients(20)
    sent = sum(send(scheme, memory, gradient, step) for step, gradient in enumerate(steps))
    assert torch.allclose(sent + memory.residuals[SPEC.key], sum(steps), atol=1e-4)


def test_momentum_correction_is_the_papers() -> None:
    """Algorithm 4 of the paper, coordinate by coordinate, with 4 workers' clipping."""
    scheme = Dgc(ratio=0.1, momentum=0.7, clip_norm=3.0)
    memory = scheme.memory(workers=4)
    u, v = [0.0] * SPEC.size, [0.0] * SPEC.size
    for step, gradient in enumerate(gradients(12)):
        expected = [0.0] * SPEC.size
        for part in SPEC.slices:
            g = gradient[part].tolist()
            clip = min(1.0, 3.0 / (math.sqrt(4) * math.sqrt(sum(x * x for x in g))))
            for i, x in zip(range(part.start, part.stop), g, strict=True):
                u[i] = 0.7 * u[i] + clip * x
                v[i] += u[i]
            largest = sorted(range(part.start, part.stop), key=lambda i: abs(v[i]), reverse=True)
            for i in largest[: (part.stop - part.start) // 10]:
                expected[i], u[i], v[i] = v[i], 0.0, 0.0
        assert send(scheme, memory, gradient, step).tolist() == pytest.approx(expected, abs=1e-5)
