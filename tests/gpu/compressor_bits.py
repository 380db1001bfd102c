"""GpuCompressor and Compressor side by side, three rounds of two workers: the same norms, codes, residuals, averages.

On the CPU with TRITON_INTERPRET=1, else on the GPU. Fails with an AssertionError.
"""

from __future__ import annotations

import numpy as np
import torch

from byteps_thc import Compressor, ThcConfig, reference
from byteps_thc.gpu import GpuCompressor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, COORDINATES = 2, 8192 + 2048 + 64 + 9
CONFIG = ThcConfig(seed=0x123456789ABCDEF)


def main() -> None:
    cpu = [Compressor(CONFIG, workers=WORKERS, worker=worker) for worker in range(WORKERS)]
    gpu = [GpuCompressor(CONFIG, workers=WORKERS, worker=worker, device=DEVICE) for worker in range(WORKERS)]
    host = [compressor.partition("layer", COORDINATES) for compressor in cpu]
    device = [compressor.partition("layer", COORDINATES) for compressor in gpu]
    rng = np.random.default_rng(0)
    for round in range(3):
        gradients = [rng.standard_normal(COORDINATES).astype(np.float32) for _ in range(WORKERS)]
        if round == 1:
            gradients[1][5000] = np.inf
        for worker in range(WORKERS):
            cpu[worker].measure(host[worker], gradients[worker], round=round)
            gradient = torch.from_numpy(gradients[worker]).to(DEVICE)
            step = torch.tensor([round], dtype=torch.int32, device=DEVICE)
            gpu[worker].measure(device[worker], gradient, round=round if worker else step)
            np.testing.assert_array_equal(device[worker].norms.cpu().numpy(), host[worker].norms)
        maxima = reference.max_norms([partition.norms for partition in host])
        for worker in range(WORKERS):
            before = host[worker].residual.copy()
            codes = cpu[worker].encode(host[worker], maxima)
            mine = gpu[worker].encode(device[worker], torch.from_numpy(maxima).to(DEVICE))
            np.testing.assert_array_equal(mine.cpu().numpy(), codes)
            residual = device[worker].residual.cpu().numpy()
            np.testing.assert_array_equal(residual.view(np.uint32), host[worker].residual.view(np.uint32))
            assert np.array_equal(residual, before) == (round == 1), "a lost step leaves the residual, others do not"
            assert bool(device[worker].keep) == host[worker].residual_kept == (round != 1)
            assert int(device[worker].clamped) == host[worker].clamped
        sums = torch.empty(host[0].padded, dtype=torch.uint8, device=DEVICE)
        gpu[0].lookup_sum(torch.stack([partition.codes for partition in device]), sums)
        averages = np.empty(COORDINATES, np.float32)
        contributions = np.full(1, WORKERS, np.uint8)
        cpu[0].decode(host[0], sums.cpu().numpy(), contributions, averages)
        out = torch.empty(COORDINATES, device=DEVICE)
        gpu[0].decode(device[0], sums, None, out)
        np.testing.assert_array_equal(out.cpu().numpy(), averages)
    print("same bits")


if __name__ == "__main__":
    main()
