"""GPU kernels against a device memcpy of as many bytes, and encode + decode against plain torch operations.

    python evaluation/benchmarks/bench_gpu.py [--json FILE] [--registers 96]

make bench-gpu checks the kernels' bits on the GPU first (tests/gpu/kernel_bits.py, block_bits.py). Times are medians
of triton.testing.do_bench, which clears the cache between runs. --registers: of a thread at most, of the kernels that
have a limit: with fewer registers more tiles share a multiprocessor. With TRITON_INTERPRET=1 it is seen that it runs,
on CPU tensors.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_baseline
import triton
from torch import Tensor

from byteps_thc._native import _core
from byteps_thc._scheme.adding.gpu import kernels
from byteps_thc._scheme.adding.gpu.tiles import TileTable
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.adding.tables.device import DeviceTable
from byteps_thc._scheme.decoding.codec import MessageLayout
from byteps_thc._scheme.decoding.gpu import block_batch
from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch
from byteps_thc._scheme.decoding.settings import DEFAULT_BITS
from byteps_thc._scheme.gpu.frontend import INTERPRETED
from byteps_thc._scheme.gpu.launch import Launcher
from byteps_thc._scheme.keys import device_key
from byteps_thc._scheme.rounding import Rounding
from byteps_thc._scheme.shares import block_words, row_shards, share_out

BLOCK = 8192
LOG_COORDINATES = 13 if INTERPRETED else 27
TARGET_BANDWIDTH = 0.8
TARGET_SPEEDUP = 8.0
#: Ranks that decode, and bits of their codes each way.
RANKS, BITS = 4, DEFAULT_BITS
HEADER = (0, 0, 5, (1 << 31) - 1 - 5)
GPU = torch.device("cpu" if INTERPRETED else "cuda")


def time_us(run: Callable[[], object]) -> float:
    """Median; on the CPU of one."""
    if INTERPRETED:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6
    return float(triton.testing.do_bench(run, warmup=50, rep=200, return_mode="median")) * 1e3


class Partition:
    """The kernels' arguments, for one gradient of n coordinates."""

    def __init__(self, n: int, dtype: torch.dtype) -> None:
        self.table = LookupTable.paper()
        self.on_device = DeviceTable.of(self.table, GPU)
        self.tiles = TileTable.of(n, (), BLOCK, GPU)
        self.gradient = torch.randn(n, device=GPU).to(dtype)
        self.residual = 0.1 * torch.randn(n, device=GPU)
        self.norms = torch.empty(n // BLOCK, device=GPU)
        self.ranges = torch.empty(n // BLOCK, 4, device=GPU)
        self.codes = torch.empty(n // 2, dtype=torch.uint8, device=GPU)
        self.keep = torch.ones(1, dtype=torch.int32, device=GPU)
        self.clamped = torch.zeros(1, dtype=torch.int64, device=GPU)
        self.energy = torch.zeros(1, dtype=torch.float64, device=GPU)
        self.key = device_key(GPU, seed=1, tensor=2, rounding=Rounding(1, 0), round=3)
        self.contributions = torch.full((1,), 4, dtype=torch.uint8, device=GPU)
        self.sums = torch.randint(0, 121, (n,), dtype=torch.uint8, device=GPU)
        self.measure()
        self.prepare()

    def measure(self, feedback: bool = True) -> None:
        kernels.block_norms(self.gradient, self.residual if feedback else None, self.norms, tiles=self.tiles)

    def prepare(self) -> None:
        kernels.clamp_ranges(
            self.norms, self.norms, self.ranges, self.keep, self.clamped, self.energy,
            table=self.on_device, largest_norm=2.0**96,
        )  # fmt: skip

    def encode(self, feedback: bool = True) -> None:
        kernels.encode(
            self.gradient, self.residual if feedback else None, self.ranges, self.codes, self.keep, self.clamped,
            table=self.on_device, key=self.key, keep_error=feedback, tiles=self.tiles,
        )  # fmt: skip

    def decode(self, aggregate: Tensor, out: Tensor) -> None:
        kernels.decode(
            aggregate, self.contributions, self.norms, out, codes_per_chunk=out.numel(),
            granularity=self.table.granularity, threshold=self.on_device.threshold, key=self.key, tiles=self.tiles,
        )  # fmt: skip


class Piece:
    """A gradient of n coordinates among ranks that decode: the first rank's part. All ranks sent the same codes.

    sharded: a reduce-scatter, whose rows have n / RANKS coordinates.
    """

    def __init__(self, n: int, dtype: torch.dtype, *, sharded: bool = False) -> None:
        columns = n // RANKS if sharded else n
        words = block_words([(0, columns)])
        if sharded:
            shards = row_shards(0, [_core.BlockTable(words, row * len(words)) for row in range(RANKS)], 0)
        else:
            shards = share_out(1, _core.BlockTable(words), 0, RANKS)
        layout = MessageLayout.of(shards, BITS)
        self.gradient, self.out = torch.randn(n, device=GPU).to(dtype), torch.empty(columns, dtype=dtype, device=GPU)
        self.sent = torch.zeros(RANKS, layout.size_bytes, dtype=torch.uint8, device=GPU)
        self.averages = torch.zeros_like(self.sent)
        self._batch = BlockBatch(
            shards, 0, columns, seed=1, bits=BITS, down_bits=None if sharded else BITS, layouts=(layout, layout),
            state=torch.tensor(HEADER, dtype=torch.int32, device=GPU),
            differ=torch.zeros((), dtype=torch.bool, device=GPU),
        )  # fmt: skip
        self.encode()
        self.received = self.sent[:1].repeat(RANKS, 1)
        if not sharded:
            self.recode()
            self.averages.copy_(self.averages[:1].expand(RANKS, -1).clone())

    def encode(self) -> None:
        self._batch.encode(self.gradient, self.sent, HEADER, 0)

    def recode(self) -> None:
        self._batch.recode(self.received, self.averages[0])

    def decode(self) -> None:
        self._batch.decode(self.averages, self.out)

    def average(self) -> None:
        self._batch.decode(self.received, self.out)


def bandwidth_rows(n: int) -> list[dict[str, Any]]:
    """Each kernel; bytes: read and written ones."""
    full, half = Partition(n, torch.float32), Partition(n, torch.bfloat16)
    copy_us = time_us(lambda: full.residual.copy_(full.gradient))
    us_per_byte = copy_us / (8 * n)
    rows = []

    def add(what: str, bytes_each: float, run: Callable[[], object]) -> None:
        own_us, peer_us = time_us(run), us_per_byte * bytes_each * n
        ratio = peer_us / own_us
        rows.append(
            {"what": what, "own_us": own_us, "peer": f"memcpy of {bytes_each:g} bytes a coordinate", "peer_us": peer_us,
             "target": f">= {TARGET_BANDWIDTH:.0%} of its bandwidth", "ratio": ratio, "met": ratio >= TARGET_BANDWIDTH}
        )  # fmt: skip
        print(f"{what:45} {own_us:9.1f} us {ratio:6.1%} of memcpy", flush=True)

    add("norms, fp32, residual", 8, full.measure)
    add("norms, bf16, residual", 6, half.measure)
    add("norms, fp32", 4, lambda: full.measure(False))
    add("encode, fp32, error feedback", 12.5, full.encode)
    add("encode, bf16, error feedback", 10.5, half.encode)
    add("encode, fp32", 4.5, lambda: full.encode(False))
    wide = torch.empty(n, dtype=torch.uint16, device=GPU)
    wide.copy_(torch.randint(0, 1201, (n,), device=GPU))
    out, half_out = full.residual, half.gradient
    add("decode, 8-bit sums, fp32", 5, lambda: full.decode(full.sums, out))
    add("decode, 8-bit sums, bf16", 3, lambda: full.decode(full.sums, half_out))
    add("decode, 16-bit sums, fp32", 6, lambda: full.decode(wide, out))
    add_rank_rows(n, add)
    return rows


def add_rank_rows(n: int, add: Callable[[str, float, Callable[[], object]], None]) -> None:
    """Kernels of ranks that decode. An owner reads a message of every rank, and writes one."""
    code = BITS / 8
    for name, dtype, width in (("fp32", torch.float32, 4), ("bf16", torch.bfloat16, 2)):
        piece = Piece(n, dtype)
        add(f"ranks: encode, {BITS} bits, {name}", width + code, piece.encode)
        if dtype == torch.float32:
            add(f"ranks: recode the shard of 1 of {RANKS}", code + code / RANKS, piece.recode)
        add(f"ranks: decode, {BITS} bits, {name}", width + code, piece.decode)
    rows = Piece(n, torch.float32, sharded=True)
    add(f"ranks: average of the row of 1 of {RANKS}", code + 4 / RANKS, rows.average)


def speedup_row(n: int) -> dict[str, Any]:
    """Encode + decode of one partition, without error feedback, as the peer has none."""
    own = Partition(n, torch.float32)
    signs = torch.where(torch.rand(n, device=GPU) < 0.5, -1.0, 1.0)
    table = own.on_device.values
    out = torch.empty(n, device=GPU)

    def ours() -> None:
        own.measure(False)
        own.prepare()
        own.encode(False)
        own.decode(own.sums, out)

    def theirs() -> None:
        _, norms = torch_baseline.encode(own.gradient, signs, table, own.on_device.threshold, BLOCK)
        torch_baseline.decode(own.sums, 4, norms, signs, float(table[-1]), own.on_device.threshold, BLOCK)

    own_us, peer_us = time_us(ours), time_us(theirs)
    ratio = peer_us / own_us
    print(
        f"encode + decode of 2^{n.bit_length() - 1}: {own_us:.0f} us, torch {peer_us:.0f} us, {ratio:.1f}x", flush=True
    )
    return {
        "what": f"norms, encode + decode, 2^{n.bit_length() - 1} floats", "own_us": own_us,
        "peer": "plain torch CUDA operations", "peer_us": peer_us, "target": f">= {TARGET_SPEEDUP:g}x faster",
        "ratio": ratio, "met": ratio >= TARGET_SPEEDUP,
    }  # fmt: skip


def limit_registers(registers: int) -> int:
    """Compile the kernels that have a limit of registers with another limit; return the number of such kernels."""
    known = [*vars(kernels).values(), *vars(block_batch).values()]
    limited = [each for each in known if isinstance(each, Launcher) and "maxnreg" in each._options]
    for launcher in limited:
        launcher._options["maxnreg"] = registers
    return len(limited)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log-coordinates", type=int, default=LOG_COORDINATES)
    parser.add_argument("--registers", type=int, help="of a thread, of the kernels that have a limit")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not INTERPRETED:
        sys.exit("bench_gpu: torch sees no GPU here")
    if arguments.registers and not (limit_registers(arguments.registers) or INTERPRETED):
        sys.exit("bench_gpu: no kernel has a limit of registers")
    n = 1 << arguments.log_coordinates
    name = "Triton's interpreter" if INTERPRETED else torch.cuda.get_device_name()
    device = f"{name}, torch {torch.__version__}, Triton {triton.__version__}"
    if arguments.registers:
        device += f", {arguments.registers} registers a thread"
    print(device, flush=True)
    rows = [*bandwidth_rows(n), speedup_row(n if INTERPRETED else n // 8)]
    rows += [] if INTERPRETED or arguments.registers else [speedup_row(1 << 20)]
    rows = [row | {"device": device} for row in rows]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
