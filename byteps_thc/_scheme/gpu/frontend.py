"""One source, two front ends of Triton.

Gluon, with explicit layouts of registers, lanes and warps, is for NVIDIA GPUs. Plain Triton, without layouts, is for
AMD GPUs and for the interpreter (TRITON_INTERPRET=1, kernels on CPU tensors). Importing this module makes the choice.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl

#: Whether kernels run on CPU tensors.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Whether kernels are plain Triton. BYTEPS_THC_PLAIN_KERNELS=1 compiles them for AMD on a machine without such a GPU.
PLAIN = INTERPRETED or os.environ.get("BYTEPS_THC_PLAIN_KERNELS") == "1" or torch.version.hip is not None

_LARGEST_FLOAT16 = triton.language.constexpr(65504.0)

jit: Any
L: Any
constexpr_function: Any = triton.constexpr_function

if PLAIN:
    jit, L = triton.jit, tl

    @jit
    def arange(N: tl.constexpr, layout: tl.constexpr):  # noqa: ARG001
        """0 .. N - 1, int32[N]."""
        return tl.arange(0, N)

    @jit
    def conv(x, layout: tl.constexpr):  # noqa: ARG001
        return x

    @jit
    def cast(x, dtype: tl.constexpr):
        """x, float32, in another format, rounded to nearest even; as from_fp32() of float_format.h."""
        if dtype == tl.float16:
            within = tl.minimum(tl.maximum(x, -_LARGEST_FLOAT16), _LARGEST_FLOAT16)
            return tl.where(tl.abs(x) < float("inf"), within, x).to(dtype)
        if dtype == tl.bfloat16:  # the interpreter would cut bits off
            bits = x.to(tl.uint32, bitcast=True)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            rounded = tl.where(x == x, rounded, (bits >> 16) | 0x40)
            return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        return x.to(dtype)

    @jit
    def number(x, INTERPRET: tl.constexpr = INTERPRETED):
        """x, float32, and 0 where it is not a number, as maximum() gives; old interpreters' maximum() gives NaN."""
        return tl.where(x == x, x, 0.0) if INTERPRET else x

    @jit
    def choose(a, b, low, high, count):
        """(high, count + 256) where a < b, else (low, count)."""
        less = a < b
        return tl.where(less, high, low), count + (less.to(tl.int32) << 8)

    @jit
    def exceeds(x, limit):
        """1 where |x| > limit, else 0, uint32."""
        return (tl.abs(x) > limit).to(tl.uint32)

    @jit
    def lowest_byte(word):
        """The lowest byte of a word, as float32."""
        return (word & 0xFF).to(tl.float32)

    @jit
    def magic_lower(word):
        """2^23 + the lower half of a word, as float32."""
        return ((word & 0xFFFF) | 0x4B000000).to(tl.float32, bitcast=True)

    @jit
    def magic_upper(word):
        """2^23 + the upper half of a word, as float32."""
        return ((word >> 16) | 0x4B000000).to(tl.float32, bitcast=True)

    @jit
    def permute_bytes(a, b, selector):
        """Byte k of the result: byte (nibble k of selector) of the eight of a and b; nibbles are below 8."""
        both = (b.to(tl.uint64) << 32) | a.to(tl.uint64)
        result = a * 0
        for k in tl.static_range(4):
            at = ((selector >> (4 * k)) & 7).to(tl.uint64) * 8
            result |= ((both >> at) & 0xFF).to(tl.uint32) << (8 * k)
        return result

else:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    jit, L = gluon.jit, gl

    @jit
    def arange(N: gl.constexpr, layout: gl.constexpr):
        return gl.arange(0, N, layout=layout)

    @jit
    def conv(x, layout: gl.constexpr):
        return gl.convert_layout(x, layout)

    @jit
    def cast(x, dtype: gl.constexpr):
        if dtype == gl.float16:
            within = gl.minimum(gl.maximum(x, -_LARGEST_FLOAT16), _LARGEST_FLOAT16)
            x = gl.where(gl.abs(x) < float("inf"), within, x)
        return x.to(dtype)

    @jit
    def number(x):
        return x

    # PTX where it saves an instruction over the compiler's code.

    @jit
    def choose(a, b, low, high, count):
        return gl.inline_asm_elementwise(
            "{ .reg .pred p; setp.lt.f32 p, $2, $3; selp.f32 $0, $5, $4, p; @p add.u32 $1, $1, 256; }",
            "=f,=r,f,f,f,f,1",
            [a, b, low, high, count],
            dtype=(gl.float32, gl.int32),
            is_pure=True,
            pack=1,
        )

    @jit
    def exceeds(x, limit):
        """1 where |x| > limit, else 0, uint32: a sign bit, which NaN of arithmetic here does not have."""
        return (limit - gl.abs(x)).to(gl.uint32, bitcast=True) >> 31

    @jit
    def lowest_byte(word):
        return gl.inline_asm_elementwise(
            "cvt.rn.f32.u8 $0, $1;", "=f,r", [word], dtype=gl.float32, is_pure=True, pack=1
        )

    @jit
    def magic_lower(word):
        return gl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0x4B000000, 0x7410;", "=f,r", [word], dtype=gl.float32, is_pure=True, pack=1
        )

    @jit
    def magic_upper(word):
        return gl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0x4B000000, 0x7432;", "=f,r", [word], dtype=gl.float32, is_pure=True, pack=1
        )

    @jit
    def permute_bytes(a, b, selector):
        return gl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, selector], dtype=gl.uint32, is_pure=True, pack=1
        )


constexpr = L.constexpr
