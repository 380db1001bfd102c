"""`packet_in` and `packet_out`: bytes with a bit cursor, and bytes being put together."""

from thc_p4_model.interfaces import ParserError
from thc_p4_model.values import Header, HeaderStack, HeaderUnion, Struct


class PacketIn:
    """The bytes a parser reads. Headers of whole bytes at a byte boundary, the usual case, take the short way."""

    __slots__ = ("_bits", "_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bits = len(data) * 8
        self.position = 0
        """Bits read so far."""

    def extract(self, header: Header, varbit_bits: int = 0) -> None:
        """Fill the header and advance by its width; a ParserError leaves the header as it was.

        PacketTooShort, or ParserInvalidArgument for a varbit that is not whole bytes, as in bmv2.
        """
        if varbit_bits & 7:
            raise ParserError("ParserInvalidArgument")
        fixed = header.BITS
        position = self.position
        end = position + fixed
        if end + varbit_bits > self._bits:
            raise ParserError("PacketTooShort")
        if varbit_bits or header.VARBIT is not None:
            value = self.lookahead_bits(fixed + varbit_bits)
            header.load_varbit(value >> varbit_bits, varbit_bits, value & ((1 << varbit_bits) - 1))
            end += varbit_bits
        elif position & 7 or fixed & 7:
            header.unpack(self.lookahead_bits(fixed))
        else:
            header.load(self._data, position >> 3)
        self.position = end

    def lookahead_bits(self, width: int) -> int:
        """The next `width` bits as an integer, without advancing; ParserError PacketTooShort."""
        position = self.position
        end = position + width
        if end > self._bits:
            raise ParserError("PacketTooShort")
        last_byte = (end + 7) >> 3
        window = int.from_bytes(self._data[position >> 3 : last_byte], "big")
        return (window >> (last_byte * 8 - end)) & ((1 << width) - 1)

    def advance(self, bits: int) -> None:
        """Skip whole bytes; ParserError PacketTooShort, or ParserInvalidArgument for other bits, as in bmv2."""
        if bits & 7:
            raise ParserError("ParserInvalidArgument")
        if self.position + bits > self._bits:
            raise ParserError("PacketTooShort")
        self.position += bits

    def length(self) -> int:
        """Bytes of the whole packet, read or not."""
        return len(self._data)

    def rest(self) -> bytes:
        """The payload: bytes that no parser state read, without bits up to the next byte boundary."""
        return self._data[(self.position + 7) >> 3 :]


class PacketOut:
    """The headers a deparser emits."""

    __slots__ = ("_bits", "_chunks", "_partial")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._partial = 0  # bits after the last whole byte, and their number
        self._bits = 0

    def emit(self, value: Struct | HeaderStack[Struct]) -> None:
        """Append a header if it is valid, or every valid header in a struct, stack or union, in order."""
        if isinstance(value, Header):
            if value.valid:
                self._append(value)
        elif isinstance(value, HeaderUnion | Struct):
            for name in value.FIELDS:
                self.emit(getattr(value, name))
        else:
            for item in value:
                self.emit(item)

    def _append(self, header: Header) -> None:
        width = header.packed_bits()
        if not self._bits and not width & 7:
            self._chunks.append(header.dump())
            return
        bits = self._bits + width
        value = (self._partial << width) | header.pack()
        self._bits = bits & 7
        self._partial = value & ((1 << self._bits) - 1)
        self._chunks.append((value >> self._bits).to_bytes(bits >> 3, "big"))

    def data(self, payload: bytes = b"") -> bytes:
        """The emitted headers, zero bits up to the next byte boundary, and the payload."""
        if self._bits:
            padding = (self._partial << (8 - self._bits)).to_bytes(1, "big")
            return b"".join((*self._chunks, padding, payload))
        return b"".join((*self._chunks, payload))
