"""Row scales of a large embedding on a device: norms, codes, residuals and averages of the host, and no wait.

PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/rows_bits.py

On the CPU with TRITON_INTERPRET=1, where the embedding is tiny, else on the GPU.
"""

import torch
from compressor_bits import CONFIG, DEVICE, check

from byteps_thc import ServerCodes
from byteps_thc._scheme.adding.gpu import GpuCompressor
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan

ON_GPU = DEVICE == "cuda"
ROWS, COLUMNS = (30_522, 96) if ON_GPU else (150, 96)
BESIDE = 8192 + 70  # coordinates of another parameter
SIZE = ROWS * COLUMNS + BESIDE
PLAN = BlockPlan((), (RowSpan(0, ROWS * COLUMNS, COLUMNS),))
#: A third of the rows, which no batch contains; whole blocks are among them.
UNUSED = slice(ROWS // 3 * COLUMNS, ROWS // 3 * 2 * COLUMNS)


def check_no_wait(config: ServerCodes, dtype: torch.dtype) -> None:
    """A round puts work on the stream alone, once its kernels are compiled."""
    gpu = GpuCompressor(config, workers=2, worker=0, device=DEVICE)
    mine = gpu.partition("embedding", SIZE, None, PLAN)
    gradient, out = torch.randn(SIZE, device=DEVICE).to(dtype), torch.empty(SIZE, dtype=dtype, device=DEVICE)
    gradient[UNUSED] = 0
    codes = torch.empty(mine.code_bytes, dtype=torch.uint8, device=DEVICE)
    sums = torch.randint(0, 2 * gpu.table.granularity + 1, (mine.padded,), dtype=torch.uint8, device=DEVICE)
    for number in range(2):
        if ON_GPU:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if number else "default")
        mine.begin(number)
        mine.measure(gradient)
        mine.max_norms.copy_(mine.norms)
        mine.encode(gradient, codes)
        mine.decode(sums, out)
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("default")
    assert not out[UNUSED].any()
    assert out.isfinite().all()


def main() -> None:
    check(2, SIZE, 3, plan=PLAN, zeros=UNUSED)
    check(2, SIZE, 2, ServerCodes(bits=4), plan=PLAN, zeros=UNUSED)
    check_no_wait(CONFIG, torch.float32)
    check_no_wait(ServerCodes(bits=4), torch.bfloat16)
    print(f"same bits: {ROWS} rows with scales")


if __name__ == "__main__":
    main()
