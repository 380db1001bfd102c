"""Compiled kernels without a GPU: PTX in NumPy, one program at a time, all its threads in step.

Only instructions that the kernels of byteps_thc have are known, and any other is an error that names it. Accesses out
of bounds, wrong alignments, races in shared memory, and branches that threads of a program disagree on are errors, too.
Programs run one after another: races between programs are not found.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from ptx_memory import Bytes, GlobalMemory, Numbers, PtxError, SharedMemory

#: Values of all threads, in any type of NumPy.
Array = Any
#: The only NaN of arithmetic on NVIDIA's GPUs. x86 has a negative one.
_NAN = np.array(0x7FFFFFFF, np.uint32).view(np.float32)


class Instruction:
    """A line of PTX.

    predicate: register that selects threads, or None. inverted: it selects threads by false. operands: names and
    numbers of each, several for {vectors} and [addresses + offsets]. type: of the results.
    """

    def __init__(self, text: str) -> None:
        parsed = re.match(r"(?:@(!?)(%?\w+)\s+)?([\w.]+)\s*(.*)", text, re.DOTALL)
        assert parsed is not None, text
        inverted, self.predicate, self.opcode, rest = parsed.groups()
        self.text, self.inverted, self.parts = text, bool(inverted), self.opcode.split(".")
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
        self.operands: list[list[str]] = [re.findall(r"[%\w.$-]+", operand) for operand in operands]
        known = [work for work, pattern in _KNOWN if re.fullmatch(pattern, self.opcode)]
        if not known:
            raise PtxError(f"unknown instruction {self.opcode}: {text}")
        self.work = known[0]

    @property
    def type(self) -> np.dtype[Any]:
        return _type(self.parts[-1])


class Kernel:
    """The only kernel of a PTX text. shared: bytes of shared memory."""

    def __init__(self, ptx: str, *, threads: int, shared: int) -> None:
        head, _, body = ptx[ptx.index(".entry") :].partition("{")
        self.threads, self.shared = threads, shared
        self._parameters: list[str] = re.findall(r"\w+_param_\d+", head)
        self._code: list[Instruction] = []
        self._labels: dict[str, int] = {}
        body = re.sub(r"//.*|^\s*\.(loc|file|pragma).*", "", body.partition("$L__func_end")[0], flags=re.MULTILINE)
        for part in body.split(";"):
            text = part.strip().lstrip("{} \t\n")  # scopes of registers
            while label := re.match(r"([$\w]+):\s*", text):
                self._labels[label[1]] = len(self._code)
                text = text[label.end() :].lstrip("{ \t\n")
            if text and not text.startswith(".reg"):
                self._code.append(Instruction(text))

    def run(self, programs: int, arguments: Sequence[int], arrays: Sequence[Bytes]) -> None:
        """Run programs, the last one first. arguments: their bits. arrays: bytes that the kernel may touch."""
        unused = [0] * (len(self._parameters) - len(arguments))  # for memory that no kernel here asks for
        parameters = dict(zip(self._parameters, [*arguments, *unused], strict=True))
        for number in reversed(range(programs)):
            program = Program(self, number, parameters, GlobalMemory(arrays))
            at: int | None = 0
            with np.errstate(all="ignore"):
                while at is not None:
                    at = self._step(program, at)

    def _step(self, program: "Program", at: int) -> int | None:
        instruction = self._code[at]
        try:
            program.choose(instruction.predicate, instruction.inverted)
            if instruction.work is not None:
                result = instruction.work(program, instruction)
                if result is not None:
                    program.write(instruction.operands[0][0], result)
            elif program.active.any():
                program.need_everybody()
                return None if instruction.opcode == "ret" else self._labels[instruction.operands[0][0]]
        except (PtxError, KeyError, TypeError, ValueError) as error:
            raise PtxError(f"{instruction.text}: {error}") from error
        return at + 1


class Program:
    """Registers by name, unsigned or bool[threads], and memory. active: threads that the instruction is for."""

    def __init__(self, kernel: Kernel, number: int, parameters: dict[str, int], memory: GlobalMemory) -> None:
        self.parameters, self.memory = parameters, memory
        self.shared = SharedMemory(kernel.shared, kernel.threads)
        self.lanes = np.arange(kernel.threads)
        self.active = self._everybody = np.ones(kernel.threads, bool)
        program = np.full(kernel.threads, number, np.uint32)
        self._registers: dict[str, Array] = {"%tid.x": self.lanes.astype(np.uint32), "%ctaid.x": program}

    def choose(self, predicate: str | None, inverted: bool) -> None:
        """Choose the active threads."""
        self.active = self._registers[predicate] ^ inverted if predicate else self._everybody

    def need_everybody(self) -> None:
        if not self.active.all():
            raise PtxError("some threads are missing")

    def read(self, operand: Sequence[str], dtype: Any) -> Array:
        """Return a predicate, or a register or number: its lowest bits, or zeros above, if the type has other sizes."""
        [name], wanted = operand, np.dtype(dtype)
        if name == "global_smem" or name[0] in "-0123456789":
            return _constant(name, wanted, len(self.lanes))
        bits = self._registers[name]
        if bits.dtype == bool:
            return bits
        return (bits if bits.itemsize == wanted.itemsize else bits.astype(_unsigned(wanted))).view(wanted)

    def sources(self, instruction: Instruction, dtype: Any) -> list[Array]:
        return [self.read(operand, dtype) for operand in instruction.operands[1:]]

    def addresses(self, operand: Sequence[str], size: int, dtype: Any = np.uint32) -> Numbers:
        """Return the bytes' addresses, [threads, size]. dtype: uint32 in shared memory, uint64 elsewhere."""
        first: Array = np.add.reduce([self.read([part], dtype) for part in operand], dtype=dtype)
        if (first[self.active] % dtype(size)).any():
            raise PtxError(f"misaligned: an address is no multiple of {size}")
        places: Numbers = first.astype(np.int64)[:, np.newaxis] + np.arange(size)
        return places

    def write(self, name: str, values: Array) -> None:
        """Set a register of active threads. In others, a new one is rubbish."""
        bits = values if values.dtype == bool else values.view(_unsigned(values.dtype))
        self._registers[name] = np.where(self.active, bits, self._registers.get(name, ~bits))


def _type(name: str) -> np.dtype[Any]:
    """NumPy's type for pred, b8, s32, f16 and so on."""
    return np.dtype(bool if name == "pred" else {"b": "u", "s": "i"}.get(name[0], name[0]) + str(int(name[1:]) // 8))


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


@cache
def _constant(text: str, dtype: np.dtype[Any], threads: int) -> Array:
    bits = 0 if text == "global_smem" else int(text[2:], 16) if text[:2] in ("0f", "0d") else int(text.rstrip("U"), 0)
    if dtype.kind == "b":
        return np.full(threads, bits != 0)
    return np.full(threads, bits & ((1 << 8 * dtype.itemsize) - 1), _unsigned(dtype)).view(dtype)


def _extreme(choose: Callable[..., Array], join: Callable[..., Array], a: Array, b: Array) -> Array:
    """The number where the other is NaN. join: of bits where both are equal, since zeros differ in their signs."""
    word = _unsigned(a.dtype)
    return np.where(a == b, join(a.view(word), b.view(word)).view(a.dtype), choose(a, b))


def _shift(to: Callable[..., Array], value: Array, count: Array) -> Array:
    count, most = count.view(_unsigned(count.dtype)), 8 * value.itemsize - 1
    result = to(value, np.minimum(count, most).astype(value.dtype))
    return result if value.dtype.kind == "i" else np.where(count > most, value.dtype.type(0), result)


def _permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    nibbles = selector[:, np.newaxis] >> np.arange(0, 16, 4, dtype=np.uint32) & np.uint32(15)
    chosen = np.take_along_axis(np.stack([a, b], 1).view(np.uint8), nibbles & 7, 1)
    return np.where(nibbles & 8, (chosen >> 7) * np.uint8(255), chosen).view(np.uint32).reshape(-1)


def _shift_pair(low: Array, high: Array, count: Array) -> Array:
    both = high.astype(np.uint64) << np.uint64(32) | low
    return (both << (count & 31) >> np.uint64(32)).astype(np.uint32)


#: Results of sources that all have the type of the instruction.
_RESULTS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c, "sqrt": np.sqrt,
    "div": lambda a, b: a / b if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b, "neg": np.negative, "abs": np.abs,
    "min": partial(_extreme, np.fmin, np.bitwise_or), "max": partial(_extreme, np.fmax, np.bitwise_and),
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": partial(_shift, np.left_shift), "shr": partial(_shift, np.right_shift), "shf": _shift_pair,
    "bfe": lambda a, start, count: a << 32 - count - start >> 32 - count, "prmt": _permute_bytes,
    "popc": lambda a: np.unpackbits(a[:, np.newaxis].view(np.uint8), axis=1).sum(1, dtype=np.uint32),
    "selp": lambda a, b, chosen: np.where(chosen, a, b),
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _calculate(program: Program, instruction: Instruction) -> Array:
    name, compared, *_ = instruction.parts
    result = _RESULTS[compared if name == "setp" else name](*program.sources(instruction, instruction.type))
    if result.dtype.kind != "f" or name == "selp":
        return result
    return np.where(np.isnan(result), _NAN.astype(result.dtype), result)


def _multiply_wide(program: Program, instruction: Instruction) -> Array:
    dtype = instruction.type
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    a, b = (program.read(operand, dtype).astype(wide) for operand in instruction.operands[1:3])
    if instruction.parts[0] == "mad":
        return a * b + program.read(instruction.operands[3], wide)
    return a * b if instruction.parts[1] == "wide" else (a * b >> 32).astype(dtype)


def _move(program: Program, instruction: Instruction) -> Array | None:
    to, source = instruction.operands
    if len(to) == len(source):
        return program.read(source, instruction.type)
    half = np.dtype(f"u{instruction.type.itemsize // 2}")
    if len(to) == 1:
        return np.stack([program.read([name], half) for name in source], 1).view(instruction.type).reshape(-1)
    for number, name in enumerate(to):
        program.write(name, program.read(source, instruction.type).view(half)[number::2].copy())
    return None


def _convert(program: Program, instruction: Instruction) -> Array:
    *_, to, source = instruction.parts
    value, *low = program.sources(instruction, np.uint16 if source == "bf16" else _type(source))
    if source == "bf16":
        value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if low:  # the first source is the upper half
        halves = [_narrow(half, to.removesuffix("x2")).view(np.uint16) for half in (*low, value)]
        return np.stack(halves, 1).view(np.uint32).reshape(-1)
    if "rzi" in instruction.parts:
        value = np.trunc(value.astype(np.float64))
        value = value if to == "f32" else np.clip(np.nan_to_num(value), -(2.0**31), 2.0**31 - 1)
    return _narrow(value, to)


def _narrow(value: Array, to: str) -> Array:
    """Convert to the format, rounded to nearest even."""
    if to != "bf16":
        return value.astype(_type(to))
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(np.isnan(value), 0x7FFF, rounded).astype(np.uint16)


def _exchange(program: Program, instruction: Instruction) -> Array:
    """Among the lanes of a warp."""
    program.need_everybody()
    value, *others, members = program.sources(instruction, instruction.type)
    if (members.view(np.int32) != -1).any():
        raise PtxError("some lanes are missing")
    if others:
        return value[program.lanes ^ others[0]]
    reduce: Any = {"max": np.max, "min": np.min, "add": np.sum}[instruction.parts[2]]
    return np.repeat(reduce(value.reshape(-1, 32), 1).astype(np.int32), 32)


def _wait(program: Program, instruction: Instruction) -> None:
    program.need_everybody()
    program.shared.synchronize(warps_alone="warp" in instruction.parts)


def _load_parameter(program: Program, instruction: Instruction) -> Array:
    """Load a parameter; signs fill registers of 64 bits."""
    [name] = instruction.operands[1]
    return np.full(len(program.lanes), program.parameters[name] & 0xFFFFFFFFFFFFFFFF, np.uint64)


def _access(program: Program, instruction: Instruction) -> None:
    kind, space, *_ = instruction.parts
    names, address = instruction.operands[:: 1 if kind == "ld" else -1]
    memory, dtype = (program.shared, np.uint32) if space == "shared" else (program.memory, np.uint64)
    words, lanes = np.zeros((len(program.lanes), len(names)), instruction.type), np.flatnonzero(program.active)
    at = program.addresses(address, words.shape[1] * words.itemsize, dtype)[lanes]
    if kind == "st":
        words[:] = np.stack([program.read([name], words.dtype) for name in names], 1)
        memory.store(at, lanes, words[lanes].view(np.uint8))
    else:
        words[lanes] = memory.load(at, lanes).view(words.dtype)
        for name, values in zip(names, words.T, strict=True):
            program.write(name, values.copy())


def _access_matrices(program: Program, instruction: Instruction) -> None:
    """Eight lanes have the addresses of a matrix's rows, and four lanes the contents of each row."""
    program.need_everybody()
    loads, lanes = instruction.parts[0] == "ldmatrix", program.lanes
    names, address = instruction.operands[:: 1 if loads else -1]
    rows = program.addresses(address, 16).reshape(-1, 4, 4)
    for number, name in enumerate(names):
        at = rows[lanes // 32 * 32 + 8 * number + lanes % 32 // 4, lanes % 4]
        if loads:
            program.write(name, program.shared.load(at, lanes).view(np.uint32).reshape(-1))
        else:
            program.shared.store(at, lanes, program.read([name], np.uint32)[:, np.newaxis].view(np.uint8))


def _add_atomically(program: Program, instruction: Instruction) -> None:
    """Skip the old value, which no kernel uses."""
    *_, address, operand = instruction.operands
    number = _type(instruction.parts[-1])
    at, values = program.addresses(address, number.itemsize, np.uint64), program.read(operand, number)
    for lane in np.flatnonzero(program.active)[:, np.newaxis]:
        sums = program.memory.load(at[lane], lane).view(number) + values[lane]
        program.memory.store(at[lane], lane, sums.view(np.uint8))


#: Patterns of names. The functions return values for the first operand, or None if they have written.
_KNOWN: list[tuple[Callable[[Program, Instruction], Array | None] | None, str]] = [
    (None, r"ret|bra(\.uni)?"),
    (_calculate, r"(add|sub|(mul|mad)\.lo|div|min|max)\.[su](16|32|64)|(and|or|xor|not)\.(pred|b16|b32|b64)"),
    (_calculate, r"(add|sub|mul|div|sqrt)\.rn\.f(32|64)|(min|max|neg|abs)\.f32|selp\.[bf](16|32|64)"),
    (_calculate, r"(shl\.b|shr\.[us])(16|32|64)|shf\.l\.wrap\.b32|bfe\.[us]32|prmt\.b32|popc\.b32"),
    (_calculate, r"setp\.(eq|ne|lt|le|gt|ge)\.([bsu](16|32|64)|f32|f64)"),
    (_multiply_wide, r"(mul|mad)\.wide\.[su](16|32)|mul\.hi\.[su]32"),
    (_move, r"mov\.(pred|[ub](16|32|64))"),
    (_convert, r"cvt\.rn\.b?f16(x2)?\.f32|cvt\.f(32|64)\.b?f16|cvt\.f64\.f32|cvt\.rn\.f32\.f64"),
    (_convert, r"cvt\.rn\.f(32|64)\.[us](8|16|32)|cvt\.rzi\.[fs]32\.f32|cvt\.[us](16|32|64)\.[us](8|16|32|64)"),
    (_exchange, r"shfl\.sync\.bfly\.b32|redux\.sync\.(max|min|add)\.s32"),
    (_wait, r"bar\.(warp\.)?sync"),
    (_load_parameter, r"ld\.param\.(b32|b64|s32)"),
    (_access, r"(ld|st)\.(global|shared)(\.v2|\.v4)?\.b(8|16|32|64)"),
    (_access_matrices, r"(ld|st)matrix\.sync\.aligned\.m8n8\.(x1|x2|x4)\.shared\.b16"),
    (_add_atomically, r"atom\.global\.gpu\.acq_rel\.add\.u64|red\.global\.gpu\.relaxed\.add\.u32"),
]
