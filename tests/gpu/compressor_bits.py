"""GpuCompressor and Compressor side by side: the same norms, codes, residuals, averages.

Three rounds of two workers; and one of the first and last of 300, whose sums have 16 bits: the others have Compressors
alone; two of three that subtract what is known of their rounding; residuals of bfloat16; two that agree, whose clamp
moves out; a batch of partitions whose rotation blocks end at tensors. On the CPU with TRITON_INTERPRET=1, else on the
GPU. Fails with an AssertionError.
"""

from __future__ import annotations

import numpy as np
import reference
import torch

from byteps_thc import Compressor, ThcConfig, _core
from byteps_thc.arrays import everybody, residual_of_tensor
from byteps_thc.block_ends import ends_within
from byteps_thc.compressor import received_by_all, scale_groups
from byteps_thc.gpu import GpuCompressor
from byteps_thc.transport.among_ranks import resolve_among_ranks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = ThcConfig(seed=0x123456789ABCDEF, error_feedback=True)


def check(workers: int, coordinates: int, rounds: int, config: ThcConfig = CONFIG, alike: bool = False) -> None:
    """The first and the last worker have GpuCompressors, too. alike: all have the same gradient."""
    cpu = [Compressor(config, workers=workers, worker=worker, threads=1) for worker in range(workers)]
    gpu = {worker: GpuCompressor(config, workers=workers, worker=worker, device=DEVICE) for worker in (0, workers - 1)}
    host = [compressor.partition("layer", coordinates) for compressor in cpu]
    device = {worker: compressor.batch([("layer", slice(0, coordinates))], None) for worker, compressor in gpu.items()}
    rng = np.random.default_rng(0)
    for round in range(rounds):
        gradients = [rng.standard_normal(coordinates).astype(np.float32) for _ in range(workers)]
        if alike:
            gradients = [gradients[0].copy() for _ in range(workers)]
        if round == 1:
            gradients[1][500] = np.inf
        for worker, compressor in enumerate(cpu):
            compressor.measure(host[worker], gradients[worker], round=round)
        there = {worker: torch.from_numpy(gradients[worker]).to(DEVICE) for worker in gpu}
        for worker, batch in device.items():
            batch.begin(round if worker else torch.tensor([round], dtype=torch.int32, device=DEVICE))
            batch.measure(there[worker])
            np.testing.assert_array_equal(batch.norms.cpu().numpy(), host[worker].norms)
        maxima = reference.max_norms([partition.norms for partition in host])
        before = {worker: host[worker].residual.copy() for worker in gpu if cpu[worker].resolved.error_feedback}
        codes = torch.stack([torch.from_numpy(cpu[worker].encode(host[worker], maxima)) for worker in range(workers)])
        for worker, batch in device.items():
            batch.max_norms.copy_(torch.from_numpy(maxima))
            mine = torch.empty(batch.code_bytes, dtype=torch.uint8, device=DEVICE)
            batch.encode(there[worker], mine)
            np.testing.assert_array_equal(mine.cpu().numpy(), codes[worker].numpy())
            if cpu[worker].resolved.error_feedback:
                residual = residual_of_tensor(batch.residual)
                np.testing.assert_array_equal(residual.view(np.uint8), host[worker].residual.view(np.uint8))
                assert np.array_equal(residual, before[worker]) == (round == 1), "a lost step leaves the residual"
                assert bool(batch.keep) == host[worker].residual_kept == (round != 1)
            assert int(batch.clamped) == host[worker].clamped
        values = torch.uint8 if cpu[0].resolved.value_bits == 8 else torch.uint16
        sums = torch.empty(host[0].padded, dtype=values, device=DEVICE)
        gpu[0].lookup_sum(codes.to(DEVICE), sums)
        averages = np.empty(coordinates, np.float32)
        for compressor, partition in zip(cpu, host, strict=True):
            compressor.decode(partition, sums.cpu().numpy(), everybody(workers), averages)
        out = torch.empty(coordinates, device=DEVICE)
        for batch in device.values():
            batch.decode(sums, out)
            np.testing.assert_array_equal(out.cpu().numpy(), averages)
        assert alike == any(np.any(partition.norms > partition.measured) for partition in host) or round == 0
        exact = np.mean(gradients, axis=0)
        assert round == 1 or np.square(averages - exact).sum() < 0.1 * np.square(exact).sum()


def check_ends() -> None:
    """One worker's batch of two partitions, sums requantized and not, against a Compressor's partitions."""
    ends, spans = (1280, 1408, 9600, 17_408), [("first", slice(0, 16_384)), ("second", slice(16_384, 20_003))]
    gradient = np.random.default_rng(1).standard_normal(20_003).astype(np.float32)
    for config in (ThcConfig(bits=4, error_feedback=True), ThcConfig(bits=5, down_bits=6, error_feedback=True)):
        resolved = resolve_among_ranks(config, "shards", 1)
        cpu = Compressor(resolved, workers=1, worker=0, threads=1)
        gpu = GpuCompressor(resolved, workers=1, worker=0, device=DEVICE)
        batch, there = gpu.batch(spans, None, ends), torch.from_numpy(gradient).to(DEVICE)
        batch.begin(3)
        batch.measure(there)
        batch.max_norms.copy_(batch.norms)
        codes = torch.empty(batch.code_bytes, dtype=torch.uint8, device=DEVICE)
        batch.encode(there, codes)
        norms, residuals, averages, totals, values, scales = [], [], [], [], [], []
        for name, span in spans:
            part = cpu.partition(name, span.stop - span.start, ends=ends_within(ends, span))
            mine = cpu.encode(part, cpu.measure(part, gradient[span], round=3))
            np.testing.assert_array_equal(codes[: len(mine)].cpu().numpy(), mine)
            codes = codes[gpu.sizes(part.coordinates)[1] * gpu.table.bits // 8 :]
            sums = np.zeros(part.padded, np.uint8 if resolved.value_bits == 8 else np.uint16)
            _core.lookup_sum(mine, cpu.table.array, sums, bits=cpu.table.bits, add=False)
            received, of_groups = received_by_all(cpu, part, sums)
            average = np.empty(part.coordinates, np.float32)
            cpu.decode(part, received, of_groups, average)
            filled = (0, gpu.sizes(part.coordinates)[1] - part.padded)
            totals.append(np.pad(sums, filled))
            values.append(np.pad(received, filled))
            scales.append(of_groups)
            norms.append(part.norms)
            residuals.append(part.residual)
            averages.append(average)
        np.testing.assert_array_equal(batch.norms.cpu().numpy(), np.concatenate(norms))
        if resolved.down is not None:
            shard = torch.from_numpy(np.concatenate(totals)).to(DEVICE)
            sent = torch.empty(shard.numel() * resolved.down.bits // 8, dtype=torch.uint8, device=DEVICE)
            limits_sent = torch.empty(scale_groups(shard.numel()), dtype=torch.uint16, device=DEVICE)
            batch.requantize(shard, sent, limits_sent)
        np.testing.assert_array_equal(batch.residual.cpu().numpy(), np.concatenate(residuals))
        out = torch.empty(20_003, device=DEVICE)
        limits = None if resolved.down is None else torch.from_numpy(np.concatenate(scales)).to(DEVICE)
        batch.decode(torch.from_numpy(np.concatenate(values)).to(DEVICE), out, contributions=limits)
        np.testing.assert_array_equal(out.cpu().numpy(), np.concatenate(averages))


def main() -> None:
    check_ends()
    check(2, 8192 + 2048 + 64 + 9, rounds=3)
    check(300, 1024 + 64 + 9, rounds=1)
    check(2, 1024 + 64 + 9, rounds=1, config=ThcConfig(p=1 / 8))
    check(3, 8192 + 64 + 9, rounds=2, config=CONFIG.model_copy(update={"subtract_rounding": True}))
    for known in (False, True):
        settings = {"residual_dtype": "bfloat16", "subtract_rounding": known}
        check(2, 8192 + 2048 + 64 + 9, rounds=3, config=CONFIG.model_copy(update=settings))
    agreeing = ThcConfig(seed=CONFIG.seed, error_feedback=True, adaptive_clamp=True, rotation_block=1024)
    check(2, 2 * 1024 + 64 + 9, rounds=3, config=agreeing, alike=True)
    print("same bits")


if __name__ == "__main__":
    main()
