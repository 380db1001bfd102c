"""GpuCompressor and Compressor side by side: the same norms, codes, residuals, averages.

Three rounds of two workers; and one of the first and last of 300, whose sums have 16 bits: the others have Compressors
alone; two of three that subtract what is known of their rounding; residuals of bfloat16; two that agree, whose clamp
moves out. On the CPU with TRITON_INTERPRET=1, else on the GPU. Fails with an AssertionError.
"""

from __future__ import annotations

import numpy as np
import reference
import torch

from byteps_thc import Compressor, ThcConfig
from byteps_thc.arrays import everybody, residual_of_tensor
from byteps_thc.gpu import GpuCompressor

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


def main() -> None:
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
