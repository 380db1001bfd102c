"""Codecs as pure functions: payloads, decoded values and sizes; memory between steps; a codec as DDP's hook."""

import math
from pathlib import Path

import pytest
import torch
from baselines import Dgc, Qsgd, SignSgd, TernGrad, TopK
from baselines.codec import EncodeContext, VectorSpec
from baselines.config import CodecConfig
from baselines.packing import pack, packed_bytes, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thc_lab.ranks import run_ranks

CONTEXT = EncodeContext(worker=0, round=0, step=0)
SCHEMES = [
    TopK(ratio=0.1),
    TopK(ratio=1.0),
    Dgc(ratio=0.01),
    TernGrad(),
    TernGrad(clip=None),
    Qsgd(bits=2),
    Qsgd(bits=4, bucket_coordinates=7),
    Qsgd(bits=8, norm="l2"),
    SignSgd(),
    SignSgd(variant="majority"),
]


def random_vector(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def one_parameter(size: int) -> VectorSpec:
    return VectorSpec.of("test", {"w": size})


def round_trip(scheme: CodecConfig, vector: Tensor, spec: VectorSpec, context: EncodeContext = CONTEXT) -> Tensor:
    codec = scheme.codec()
    payload = codec.encode(vector, spec, context)
    assert payload.dtype == torch.uint8
    assert payload.numel() == codec.payload_bytes(spec, context.step)
    return codec.decode(payload, spec, context.step)


@settings(deadline=None)
@given(codes=st.lists(st.integers(0, 255), min_size=1, max_size=70), bits=st.sampled_from([1, 2, 4, 8]))
def test_codes_survive_packing(codes: list[int], bits: int) -> None:
    values = torch.tensor(codes, dtype=torch.uint8) & ((1 << bits) - 1)
    packed = pack(values, bits)
    assert packed.numel() == packed_bytes(len(codes), bits) == math.ceil(len(codes) * bits / 8)
    assert unpack(packed, bits, len(codes)).equal(values)


def test_first_code_is_in_the_lowest_bits() -> None:
    assert pack(torch.tensor([1, 0, 0, 1, 1], dtype=torch.uint8), 1).tolist() == [0b11001]
    assert pack(torch.tensor([3, 0, 2], dtype=torch.uint8), 2).tolist() == [0b100011]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=4), seed=st.integers(0, 1 << 30))
def test_every_size_of_vector_has_the_stated_payload(scheme: CodecConfig, sizes: list[int], seed: int) -> None:
    spec = VectorSpec.of("test", {f"p{i}": size for i, size in enumerate(sizes)})
    vector = random_vector(spec.size, seed)
    decoded = round_trip(scheme, vector, spec)
    assert decoded.shape == vector.shape
    assert decoded.dtype == torch.float32
    # No scheme turns a sign around (majority's are +-1 everywhere).
    assert bool((decoded * vector >= 0).all())


def test_top_k_sends_the_largest_of_each_parameter() -> None:
    spec = VectorSpec.of("test", {"small": 4, "large": 200, "one": 1})
    vector = random_vector(205)
    vector[:4] *= 1e-6
    decoded = round_trip(TopK(ratio=0.1), vector, spec)
    for part, count in zip(spec.slices, (1, 20, 1), strict=True):
        kept = decoded[part] != 0
        assert int(kept.sum()) == count
        assert decoded[part][kept].equal(vector[part][kept])
        expected = vector[part].abs().sort(descending=True).values[:count]
        assert decoded[part][kept].abs().sort(descending=True).values.equal(expected)


def test_dgc_warms_up() -> None:
    scheme = Dgc(ratio=0.01, warmup_steps_per_ratio=5)
    ratios = [0.25, 0.25, 0.0625, 0.015625, 0.01, 0.01, 0.01]  # the warm-up's fourth, 0.004, is below the final one
    assert [scheme.ratio_at(step) for step in (0, 4, 5, 10, 15, 20, 1000)] == ratios
    assert Dgc(ratio=0.01).ratio_at(0) == 0.01


def test_sign_sgd_scales_signs_by_the_mean_magnitude() -> None:
    spec = VectorSpec.of("test", {"a": 3, "b": 2})
    decoded = round_trip(SignSgd(), torch.tensor([1.0, -2.0, 0.0, -8.0, -4.0]), spec)
    assert decoded.tolist() == [1.0, -1.0, 1.0, -6.0, -6.0]


def test_majority_vote() -> None:
    spec, codec = one_parameter(3), SignSgd(variant="majority").codec()
    gradients = [torch.tensor(row) for row in ([5.0, -1.0, 1.0], [-1.0, -2.0, 1.0], [2.0, 3.0, 1.0], [1.0, -3.0, -1.0])]
    votes = [codec.decode(codec.encode(gradient, spec, CONTEXT), spec, 0) for gradient in gradients]
    assert codec.combine(votes).tolist() == [1.0, -1.0, 1.0]
    assert codec.combine(votes[:2]).tolist() == [0.0, -1.0, 1.0]


@pytest.mark.parametrize(
    ("scheme", "levels", "order"),
    [
        (TernGrad(clip=None), 1, torch.inf),
        (Qsgd(bits=2, bucket_coordinates=1000), 1, torch.inf),
        (Qsgd(bits=4, bucket_coordinates=1000), 7, torch.inf),
        (Qsgd(bits=8, bucket_coordinates=1000), 127, torch.inf),
        (Qsgd(bits=4, bucket_coordinates=1000, norm="l2"), 7, 2),
    ],
    ids=repr,
)
def test_stochastic_rounding_is_unbiased(scheme: CodecConfig, levels: int, order: float) -> None:
    """The mean over 2000 rounds is as near to the vector as Bernstein's inequality says.

    Rounding x to the multiples of `step` around it has variance step^2 f (1 - f), where f is the fraction of a step
    that x is above the lower one. All 1000 means together are out of bounds with a probability of 10^-6 at most.
    """
    rounds, size = 2000, 1000
    spec, vector = one_parameter(size), random_vector(size)
    total = torch.zeros(size, dtype=torch.float64)
    for number in range(rounds):
        total += round_trip(scheme, vector, spec, EncodeContext(worker=0, round=number, step=number))
    step = float(torch.linalg.vector_norm(vector, ord=order)) / levels
    fraction = (vector.double().abs() / step).frac()
    odds = math.log(2 * size / 1e-6)
    bound = step * ((2 * fraction * (1 - fraction) * odds / rounds).sqrt() + odds / (3 * rounds))
    assert bool(((total / rounds - vector).abs() <= bound).all())
    # Rounding to the nearest level, which is biased, would be seen.
    nearest = (vector / step).round() * step
    assert bool(((nearest - vector).abs() > bound).any())


def test_tern_grad_has_three_values_below_the_clamp() -> None:
    vector = random_vector(5000)
    vector[0] = 100.0
    values = round_trip(TernGrad(clip=2.5), vector, one_parameter(5000)).unique()
    bound = 2.5 * float(vector.std(correction=0))
    assert values.tolist() == pytest.approx([-bound, 0.0, bound])


def test_rounding_errors_of_workers_are_independent() -> None:
    """The error of the average falls with the number of workers; with the same bits it would not."""
    spec, vector, scheme = one_parameter(20_000), random_vector(20_000), Qsgd(bits=2)

    def error(workers: int) -> float:
        decoded = [round_trip(scheme, vector, spec, EncodeContext(worker=w, round=0, step=0)) for w in range(workers)]
        return float((scheme.codec().combine(decoded) - vector).square().sum())

    assert error(16) == pytest.approx(error(1) / 16, rel=0.1)


SPEC = VectorSpec.of("bucket", {"a": 40, "b": 60})


def gradients(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SPEC.size, generator=generator) for _ in range(steps)]


def send(scheme: CodecConfig, memory, gradient: torch.Tensor, step: int, *, keep: bool = True) -> torch.Tensor:
    """Take one worker's step; return its decoded message."""
    codec, context = scheme.codec(), EncodeContext(worker=0, round=step, step=step)
    state = memory.compensate(gradient, SPEC)
    sent = codec.decode(codec.encode(state.vector, SPEC, context), SPEC, step)
    if keep:
        memory.keep(state, sent)
    return sent


@pytest.mark.parametrize("scheme", [TopK(ratio=0.1), SignSgd()], ids=repr)
def test_error_feedback_loses_nothing(scheme: CodecConfig) -> None:
    """Messages and residuals add up to all gradients."""
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


def largest_of(vector: Tensor, count: int) -> Tensor:
    sent = torch.zeros_like(vector)
    largest = vector.abs().topk(count).indices
    sent[largest] = vector[largest]
    return sent


def test_top_k_with_error_feedback_in_ddp(tmp_path: Path) -> None:
    reports = run_ranks(Path(__file__).with_name("codec_hook_rank.py"), 2, tmp_path)
    residuals = [torch.zeros(64 * 50) for _ in reports]
    for steps in zip(*reports, strict=True):
        sent = []
        for residual, step in zip(residuals, steps, strict=True):
            residual += step["own"][0].flatten()
            sent.append(largest_of(residual, 320))
            residual -= sent[-1]
        for step in steps:
            weight, bias = step["averages"]
            torch.testing.assert_close(weight.flatten(), sum(sent) / 2)
            torch.testing.assert_close(bias, sum(other["own"][1] for other in steps) / 2)  # small: exact
