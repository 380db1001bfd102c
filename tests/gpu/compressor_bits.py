"""GpuCompressor and Compressor side by side: the same norms, codes, residuals, averages.

Rounds of two workers, of the first and last of 300 (16-bit sums), of rows that have scales, of blocks that end at
tensors. On the CPU with TRITON_INTERPRET=1, else on the GPU.
"""

import numpy as np
import reference
import torch

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.arrays import everybody, residual_of_tensor
from byteps_thc._scheme.adding.gpu import GpuCompressor
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan, RowSpan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NONE = slice(0, 0)
CONFIG = ServerCodes(seed=0x123456789ABCDEF, error_feedback=True)


def check(
    workers: int,
    coordinates: int,
    rounds: int,
    config: ServerCodes = CONFIG,
    plan: BlockPlan = WHOLE,
    zeros: slice = NONE,
) -> None:
    """The first and the last worker have GpuCompressors, too. zeros: in all gradients."""
    cpu = [Compressor(config, workers=workers, worker=worker, threads=1) for worker in range(workers)]
    gpu = {worker: GpuCompressor(config, workers=workers, worker=worker, device=DEVICE) for worker in (0, workers - 1)}
    host = [compressor.partition("layer", coordinates, plan=plan) for compressor in cpu]
    device = {worker: compressor.partition("layer", coordinates, None, plan) for worker, compressor in gpu.items()}
    rng = np.random.default_rng(0)
    for round in range(rounds):
        gradients = [rng.standard_normal(coordinates).astype(np.float32) for _ in range(workers)]
        if round == 1:
            gradients[1][500] = np.inf
        for gradient in gradients:
            gradient[zeros] = 0
        for worker, compressor in enumerate(cpu):
            compressor.measure(host[worker], gradients[worker], round=round)
        there = {worker: torch.from_numpy(gradients[worker]).to(DEVICE) for worker in gpu}
        for worker, mine in device.items():
            mine.begin(round)
            mine.measure(there[worker])
            np.testing.assert_array_equal(mine.norms.cpu().numpy(), host[worker].norms)
        maxima = reference.max_norms([partition.norms for partition in host])
        before = {worker: host[worker].residual.copy() for worker in gpu if cpu[worker].resolved.error_feedback}
        codes = torch.stack([torch.from_numpy(cpu[worker].encode(host[worker], maxima)) for worker in range(workers)])
        for worker, mine in device.items():
            mine.max_norms.copy_(torch.from_numpy(maxima))
            packed = torch.empty(mine.code_bytes, dtype=torch.uint8, device=DEVICE)
            mine.encode(there[worker], packed)
            np.testing.assert_array_equal(packed.cpu().numpy(), codes[worker].numpy())
            if cpu[worker].resolved.error_feedback:
                residual = residual_of_tensor(mine.residual)
                np.testing.assert_array_equal(residual.view(np.uint8), host[worker].residual.view(np.uint8))
                assert np.array_equal(residual, before[worker]) == (round == 1), "a lost step leaves the residual"
                assert bool(mine.keep) == host[worker].residual_kept == (round != 1)
            assert int(mine.clamped) == host[worker].clamped
        values = torch.uint8 if cpu[0].resolved.value_bits == 8 else torch.uint16
        table = cpu[0].resolved.table
        unpacked = [reference.unpack(own.numpy(), table.bits, host[0].padded) for own in codes]
        sums = torch.from_numpy(reference.lookup_sum(unpacked, table.values)).to(values).to(DEVICE)
        averages = np.empty(coordinates, np.float32)
        for compressor, partition in zip(cpu, host, strict=True):
            compressor.decode(partition, sums.cpu().numpy(), everybody(workers), averages)
        out = torch.empty(coordinates, device=DEVICE)
        for mine in device.values():
            mine.decode(sums, out)
            np.testing.assert_array_equal(out.cpu().numpy(), averages)
        assert round == 1 or not averages[zeros].any()
        exact = np.mean(gradients, axis=0)
        assert round == 1 or np.square(averages - exact).sum() < 0.1 * np.square(exact).sum()


def main() -> None:
    rows, zeros = BlockPlan((), (RowSpan(320, 8192 + 2048 + 5, 50),)), slice(820, 1320)
    check(2, 8192 + 2048 + 64 + 9, 3, plan=rows, zeros=zeros)
    check(2, 8192 + 2048 + 64 + 9, 2, ServerCodes(bits=4), plan=rows, zeros=zeros)
    check(2, 8192 + 2048 + 64 + 9, rounds=3)
    check(300, 1024 + 64 + 9, rounds=1)
    check(2, 1024 + 64 + 9, rounds=1, config=ServerCodes(p=1 / 8))
    tensors, span = (1280, 1408, 9600), RowSpan(1500, 9000, 50)
    check(2, 16_384 - 77, 1, plan=BlockPlan(tensors, ()))
    check(2, 16_384 - 77, 1, ServerCodes(bits=5), plan=BlockPlan(tensors, (span, RowSpan(12_000, 16_307, 300, 7))))
    print("same bits")


if __name__ == "__main__":
    main()
