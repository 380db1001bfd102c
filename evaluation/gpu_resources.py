"""Print the GPU kernels' resources, compiled ahead of time on any machine, with Triton installed.

Registers and stack are a thread's, shared memory a program's; instructions are counted in the machine code over the
coordinates of a thread, loops counted once. --arch: sm_80, sm_90, sm_100, sm_120, or gfx942 (which takes
BYTEPS_THC_PLAIN_KERNELS=1 in the environment, see byteps_thc/_scheme/gpu/frontend.py).
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from byteps_thc._scheme.adding.gpu.decode import decode_kernel
from byteps_thc._scheme.adding.gpu.encode import RANGES_WARPS, encode_kernel, ranges_kernel
from byteps_thc._scheme.adding.gpu.kernels import register_limit
from byteps_thc._scheme.adding.gpu.norms import norms_kernel
from byteps_thc._scheme.adding.gpu.tiles import ALL_TILES, FULL_TILES, ODD_TILES
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.gpu.block_kernels import (
    DOWN,
    UP,
    decode_blocks_kernel,
    encode_blocks_kernel,
    recode_blocks_kernel,
)
from byteps_thc._scheme.decoding.gpu.block_tiles import PROGRAM_BLOCKS, WARPS
from byteps_thc._scheme.gpu.frontend import PLAIN

_TILE = {"LOG": 13, "T": 8192, "KIND": FULL_TILES}
_ALL, _ODD = {"KIND": ALL_TILES}, {"KIND": ODD_TILES}
_POSITION = {"tiles": "*i32"}
_AVERAGE = {
    "aggregate": "*u8", "contributions": "*u8", "max_norms": "*fp32", "out": "*fp32", "key": "*i32",
    "threshold": "fp32", "granularity": "fp32", "codes_per_chunk": "i64", **_POSITION,
}  # fmt: skip
_TILES = {"fixed": "*i32", "begun": "*i32", "tiles": "*i32", "words": "*i64"}
#: Pointers that kernels are not specialized for.
_ANY_ALIGNMENT = ("fixed", "begun", "state", "differ")


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is compiled: `coordinates` of a program of so many warps."""

    name: str
    function: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int
    coordinates: int
    limited: bool = False


@dataclass(frozen=True)
class Resources:
    """See the module."""

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions_per_coordinate: float


def kernels(gradient: str = "fp32") -> list[Kernel]:
    """Every kernel, for rotation blocks of 8192, 4-bit codes and gradients of that type (fp32, fp16, bf16)."""
    encoded = {
        "gradient": f"*{gradient}", "residual": "*fp32", "codes": "*u8", "ranges": "*fp32", "entries": "*i64",
        "values": "*fp32", "key": "*i32", "keep": "*i32", "clamped": "*i64", **_POSITION,
    }  # fmt: skip
    measured = {"gradient": f"*{gradient}", "residual": "*fp32", "norms": "*fp32", **_POSITION}
    ranges = {
        "norms": "*fp32", "max_norms": "*fp32", "ranges": "*fp32", "keep": "*i32", "clamped": "*i64",
        "energy": "*fp64", "threshold": "fp32", "granularity": "fp32", "largest": "fp32", "blocks": "i32",
    }  # fmt: skip
    code = {"BITS": 4, "WIDE": False, "ADD": True, "KEEP": True}
    bare = code | {"ADD": False, "KEEP": False}
    average = {"MAPPED": True, "CHUNKED": False}
    tile = 8192
    return [
        Kernel("norms", norms_kernel, measured, _TILE | {"ADD": True}, 8, tile),
        Kernel("norms, all tiles", norms_kernel, measured, _TILE | {"ADD": True} | _ALL, 8, tile),
        Kernel("ranges", ranges_kernel, ranges, {}, RANGES_WARPS.value, tile * 2048),
        Kernel("encode", encode_kernel, encoded, _TILE | code, 8, tile, True),
        Kernel("encode, no error feedback", encode_kernel, encoded, _TILE | bare, 8, tile, True),
        Kernel("encode, all tiles", encode_kernel, encoded, _TILE | code | _ALL, 8, tile, True),
        Kernel("encode, odd tiles", encode_kernel, encoded, _TILE | code | _ODD, 8, tile, True),
        Kernel("encode, all tiles, no error feedback", encode_kernel, encoded, _TILE | bare | _ALL, 8, tile, True),
        Kernel("encode, 5 bits", encode_kernel, encoded, _TILE | code | {"BITS": 5}, 8, tile, True),
        Kernel("encode, 6 bits", encode_kernel, encoded, _TILE | code | {"BITS": 6}, 8, tile, True),
        Kernel("decode", decode_kernel, _AVERAGE, _TILE | average, 8, tile, True),
        Kernel("decode, chunks", decode_kernel, _AVERAGE, _TILE | average | {"CHUNKED": True}, 8, tile, True),
        Kernel("decode, all tiles", decode_kernel, _AVERAGE, _TILE | average | _ALL, 8, tile, True),
        *_among_ranks(gradient),
    ]  # fmt: skip


def _among_ranks(gradient: str) -> list[Kernel]:
    """Kernels of ranks that decode, 4 bits each way; with 2 bits up, kernels of the way up clip."""
    sent = {
        "gradient": f"*{gradient}", "sent": "*u8", "number": "i32", "round31": "i32", "round": "i32",
        "largest": "i32", "complement": "i32", "exact": "*i64", **_TILES,
    }  # fmt: skip
    recoded = {"received": "*u8", "own_message": "*u8", **_TILES}
    averages = {
        "messages": "*u8", "out": f"*{gradient}", "state": "*i32", "differ": "*u8", "exact": "*i64", **_TILES,
    }  # fmt: skip
    rows = [
        ("encode", encode_blocks_kernel, sent, {"BITS": 4}),
        ("recode", recode_blocks_kernel, recoded, {"BITS": 4, "DOWN_BITS": 4}),
        ("decode", decode_blocks_kernel, averages, {"HOP": DOWN, "BITS": 4, "GATHER": False}),
        ("average of rows", decode_blocks_kernel, averages, {"HOP": UP, "BITS": 4, "GATHER": False}),
        ("gather", decode_blocks_kernel, averages, {"HOP": UP, "BITS": 8, "GATHER": True}),
        ("encode, 2 bits", encode_blocks_kernel, sent, {"BITS": 2}),
        ("encode, 5 bits", encode_blocks_kernel, sent, {"BITS": 5}),
    ]
    return [
        Kernel(f"blocks, {name}", function, types, constants, WARPS, BLOCK * PROGRAM_BLOCKS, True)
        for name, function, types, constants in rows
    ]


def compile_kernel(kernel: Kernel, arch: str) -> Any:
    """Return the compiled kernel, without a GPU."""
    hip = arch.startswith("gfx")
    if hip != PLAIN:
        sys.exit(f"gpu_resources: {arch} needs BYTEPS_THC_PLAIN_KERNELS={int(hip)}")
    target = GPUTarget("hip", arch, 64) if hip else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    types = kernel.types | dict.fromkeys(kernel.constants, "constexpr")
    names = kernel.function.arg_names
    signature = {name: types[name] for name in names}
    pointers = [i for i, name in enumerate(names) if signature[name].startswith("*") and name not in _ANY_ALIGNMENT]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    if PLAIN:
        source = ASTSource(kernel.function, signature, kernel.constants, aligned)
    else:
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource(kernel.function, signature, kernel.constants, aligned)
    options = {"num_warps": kernel.warps, "enable_fp_fusion": False, **(register_limit() if kernel.limited else {})}
    return triton.compile(source, target=target, options=options)


def measure(kernel: Kernel, compiled: Any) -> Resources:
    """Read the machine code."""
    if "cubin" in compiled.asm:
        registers, stack, instructions = _cubin(compiled.asm["cubin"])
    else:
        registers, stack, instructions = _amdgcn(compiled.asm["amdgcn"])
    lanes = compiled.metadata.target.warp_size
    each = instructions * kernel.warps * lanes / kernel.coordinates
    return Resources(kernel.name, registers, stack, compiled.metadata.shared, round(each, 2))


def _cubin(cubin: bytes) -> tuple[int, int, int]:
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([tools / tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", code)
    return int(found[1]), int(found[2]), sum(opcode != "NOP" for opcode in opcodes)


def _amdgcn(assembly: str) -> tuple[int, int, int]:
    registers, stack = (
        int(re.search(rf"\.{name}:\s+(\d+)", assembly)[1])  # type: ignore[index]
        for name in ("vgpr_count", "private_segment_fixed_size")
    )
    return registers, stack, len(re.findall(r"^\t(?:v|s|ds|global|buffer|flat)_\w+", assembly, re.MULTILINE))


def main() -> None:
    """Print a table, or with --json a list of Resources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--gradient", default="fp32", choices=["fp32", "fp16", "bf16"])
    parser.add_argument("--kernel", default="", help="only kernels whose name begins so")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        measure(kernel, compile_kernel(kernel, arguments.arch))
        for kernel in kernels(arguments.gradient)
        if kernel.name.startswith(arguments.kernel)
    ]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        print(
            f"{row.kernel:32} {row.registers:4} registers {row.stack_bytes:4} B stack {row.shared_bytes:6} B shared "
            f"{row.instructions_per_coordinate:7.2f} instructions a coordinate"
        )


if __name__ == "__main__":
    main()
