"""The externs of TNA and T2NA other than registers."""

from collections.abc import Callable, Mapping
from typing import Any

from thc_p4_model.checksums import CRC8, CRC16, CRC64, Crc, crc32, ones_complement_sum, xor_words
from thc_p4_model.externs.counters import CounterArray
from thc_p4_model.externs.data import bits_of, bytes_of, plain
from thc_p4_model.externs.runtime import DirectCounter, FunctionBinder
from thc_p4_model.externs.tna_registers import Register, RegisterAction, RegisterParam
from thc_p4_model.externs.tna_state import MirrorRequest, TnaState
from thc_p4_model.interfaces import CallInfo, ExternInfo, Kind, P4Error
from thc_p4_model.packet import PacketIn
from thc_p4_model.tables import Entry


class TnaDirectCounter(DirectCounter):
    """`DirectCounter`: an action's `count()` counts at the entry that chose the action."""

    _entry: Entry | None = None

    def hit(self, entry: Entry) -> None:
        """Remember the entry."""
        self._entry = entry

    def count(self, adjust_byte_count: int | None = None) -> None:
        """Count the packet."""
        if self._entry is None:
            raise P4Error(self.info.location, f"DirectCounter {self.info.name} belongs to no table")
        self._entry.packets += 1
        self._entry.bytes += self.state.packet_bytes - (adjust_byte_count or 0)


class Checksum:
    """`Checksum`: ones' complement sums of header fields. In parsers it adds up within one packet."""

    def __init__(self, _: ExternInfo, state: TnaState) -> None:
        self._state = state
        self._pass = 0
        self._sum = 0

    def _accumulate(self, value: int) -> None:
        if self._pass != self._state.number:
            self._pass = self._state.number
            self._sum = 0
        self._sum = ones_complement_sum(self._sum + value)

    def bind_add(self, call: CallInfo) -> Callable[[Any], None]:
        """`void add<T>(in T data)`."""
        words = _words(call)
        return lambda data: self._accumulate(words(data))

    def bind_subtract(self, call: CallInfo) -> Callable[[Any], None]:
        """`void subtract<T>(in T data)`."""
        words = _words(call)
        return lambda data: self._accumulate(0xFFFF - ones_complement_sum(words(data)))

    def verify(self) -> bool:
        """`bool verify()`: true when the sum is wrong, as programs for the hardware use it (`checksum_error = ...`)."""
        self._accumulate(0)
        return self._sum != 0xFFFF

    def get(self) -> int:
        """`bit<16> get()`: the sum itself, to be among the data of `update` later (RFC 1624)."""
        self._accumulate(0)
        return self._sum

    def bind_update(self, call: CallInfo) -> Callable[..., int]:
        """`bit<16> update<T>(in T data, @optional in bool zeros_as_ones)`: the checksum of the data."""
        words = _words(call)

        def update(data: Any, zeros_as_ones: bool | None = None) -> int:
            checksum = 0xFFFF - ones_complement_sum(words(data))
            return 0xFFFF if zeros_as_ones and not checksum else checksum

        return update


def _words(call: CallInfo) -> Callable[[Any], int]:
    """The data of a call filled up to whole 16-bit words, as one integer."""
    bits = bits_of(call.params[0].type)

    def words(data: Any) -> int:
        value, width = bits(data)
        return value << (-width % 16)

    return words


class ParserCounter:
    """`ParserCounter`: a signed counter for loops in a parser."""

    def __init__(self, _: ExternInfo, __: TnaState) -> None:
        self._value = 0

    def bind_set(self, call: CallInfo) -> Callable[[int], None]:
        """`void set<T>(in T value)`."""
        if len(call.params) > 1:
            raise P4Error(
                call.location, "ParserCounter.set with max, rotate, mask and add is not supported by the model"
            )
        return self._set

    def _set(self, value: int) -> None:
        self._value = value

    def is_zero(self) -> bool:
        """Whether the counter is 0."""
        return self._value == 0

    def is_negative(self) -> bool:
        """Whether the counter is below 0."""
        return self._value < 0

    def increment(self, value: int) -> None:
        """Add."""
        self._value += value

    def decrement(self, value: int) -> None:
        """Subtract."""
        self._value -= value


class ParserPriority:
    """`ParserPriority`: means nothing here, as no input buffer is ever congested."""

    def __init__(self, _: ExternInfo, __: TnaState) -> None:
        pass

    def set(self, prio: int) -> None:
        """Nothing."""


class CrcPolynomial:
    """`CRCPolynomial<T>(coeff, reversed, msb, extended, init, xor)`."""

    def __init__(self, info: ExternInfo, _: TnaState) -> None:
        coefficient, is_reversed, msb, extended, initial, final_xor = info.args
        if msb or extended:
            raise P4Error(info.location, "CRCPolynomial: msb and extended are not supported by the model")
        self.crc = Crc(info.type_args[0].width, coefficient, initial, is_reversed, final_xor)


HASHES: Mapping[str, Callable[[bytes], int]] = {
    "XOR8": lambda data: xor_words(data, 1),
    "XOR16": lambda data: xor_words(data, 2),
    "XOR32": lambda data: xor_words(data, 4),
    "CRC8": CRC8,
    "CRC16": CRC16,
    "CRC32": crc32,
    "CRC64": CRC64,
}


class Hash:
    """`Hash<W>(algorithm, polynomial)`: the lower bits of the hash where it is wider than W."""

    def __init__(self, info: ExternInfo, _: TnaState) -> None:
        algorithm = info.args[0]
        polynomial = info.args[1] if len(info.args) > 1 else None
        self._mask = (1 << info.type_args[0].width) - 1
        self._identity = algorithm == "IDENTITY"
        if isinstance(polynomial, CrcPolynomial):
            self._hash: Callable[[bytes], int] = polynomial.crc
        elif algorithm in HASHES:
            self._hash = HASHES[algorithm]
        elif not self._identity:
            raise P4Error(info.location, f"hash algorithm {algorithm} is not supported by the model")

    def bind_get(self, call: CallInfo) -> Callable[[Any], int]:
        """`W get<D>(in D data)`."""
        mask = self._mask
        if self._identity:
            bits = bits_of(call.params[0].type)
            return lambda data: bits(data)[0] & mask
        hash_, data_bytes = self._hash, bytes_of(call.params[0].type)
        return lambda data: hash_(data_bytes(data)) & mask


class Random:
    """`Random<W>()`."""

    def __init__(self, info: ExternInfo, state: TnaState) -> None:
        self._width = info.type_args[0].width
        self._random = state.random

    def get(self) -> int:
        """A random value of W."""
        return self._random.getrandbits(self._width)


class Mirror:
    """`Mirror(type)`: its `emit` in a deparser copies the packet to a session of the control plane."""

    def __init__(self, _: ExternInfo, state: TnaState) -> None:
        self._state = state

    def bind_emit(self, call: CallInfo) -> Callable[..., None]:
        """`void emit<T>(in MirrorId_t session_id, in T hdr)`."""
        data_bytes = bytes_of(call.params[1].type) if len(call.params) > 1 else None

        def emit(session: int, header: Any = None) -> None:
            self._state.mirror = MirrorRequest(session, data_bytes(header) if data_bytes else b"")

        return emit


class Resubmit:
    """`Resubmit(type)`: its `emit` in the ingress deparser sends the packet through ingress once more."""

    def __init__(self, _: ExternInfo, state: TnaState) -> None:
        self._state = state

    def bind_emit(self, call: CallInfo) -> Callable[..., None]:
        """`void emit<T>(in T hdr)`."""
        data_bytes = bytes_of(call.params[0].type) if call.params else None

        def emit(header: Any = None) -> None:
            self._state.resubmit = data_bytes(header) if data_bytes else b""

        return emit


class Digest:
    """`Digest<T>(type)`: its `pack` in the ingress deparser sends data to the control plane."""

    def __init__(self, info: ExternInfo, state: TnaState) -> None:
        self._name = info.name
        self._type = info.type_args[0]
        self._digests = state.digests

    def bind_pack(self, call: CallInfo) -> Callable[[Any], None]:
        """`void pack(in T data)`."""
        names = [name for name, _ in self._type.fields]
        given_type = call.params[0].type

        def pack(data: Any) -> None:
            items = plain(given_type, data)
            if given_type.kind is Kind.TUPLE:
                items = dict(zip(names, items.values(), strict=True))
            self._digests.append((self._name, items))

        return pack


def bind_min(_: TnaState, __: CallInfo) -> Callable[[int, int], int]:
    """`T min<T>(in T t1, in T t2)`."""
    return min


def bind_max(_: TnaState, __: CallInfo) -> Callable[[int, int], int]:
    """`T max<T>(in T t1, in T t2)`."""
    return max


def bind_size_in_bits(_: TnaState, call: CallInfo) -> Callable[[Any], int]:
    """`bit<32> sizeInBits<H>(in H h)`."""
    width = call.params[0].type.width
    return lambda _: width


def bind_size_in_bytes(_: TnaState, call: CallInfo) -> Callable[[Any], int]:
    """`bit<32> sizeInBytes<H>(in H h)`."""
    width = call.params[0].type.width
    return lambda _: (width + 7) // 8


def bind_funnel_shift_right(_: TnaState, call: CallInfo) -> Callable[..., int]:
    """`void funnel_shift_right<T>(dst, in T src1, in T src2, int shift)`: the lower half of src1 ++ src2 >> shift."""
    width = call.params[-2].type.width
    mask = (1 << width) - 1

    def funnel_shift_right(*args: int) -> int:
        high, low, shift = args[-3:]  # Tofino 1 passes dst, which is inout there, in front
        return (((high << width) | low) >> shift) & mask

    return funnel_shift_right


def bind_port_metadata_unpack(state: TnaState, call: CallInfo) -> Callable[[PacketIn], Any]:
    """`T port_metadata_unpack<T>(packet_in pkt)`."""
    result = call.result

    def port_metadata_unpack(packet: PacketIn) -> Any:
        bits = packet.lookahead_bits(result.width)
        packet.advance(state.port_metadata_bytes * 8)
        return result.unpack(bits)

    return port_metadata_unpack


CLASSES: Mapping[str, Callable[[ExternInfo, Any], Any]] = {
    "Register": Register,
    "RegisterAction": RegisterAction,
    "RegisterParam": RegisterParam,
    "Counter": CounterArray,
    "DirectCounter": TnaDirectCounter,
    "Checksum": Checksum,
    "ParserCounter": ParserCounter,
    "ParserPriority": ParserPriority,
    "CRCPolynomial": CrcPolynomial,
    "Hash": Hash,
    "Random": Random,
    "Mirror": Mirror,
    "Resubmit": Resubmit,
    "Digest": Digest,
}

FUNCTIONS: Mapping[str, FunctionBinder] = {
    "min": bind_min,
    "max": bind_max,
    "sizeInBits": bind_size_in_bits,
    "sizeInBytes": bind_size_in_bytes,
    "funnel_shift_right": bind_funnel_shift_right,
    "port_metadata_unpack": bind_port_metadata_unpack,
}
