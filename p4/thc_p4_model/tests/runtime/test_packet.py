import pytest
from model_infos import Odd, Small

from thc_p4_model.interfaces import ParserError
from thc_p4_model.packet import PacketIn, PacketOut


def test_extract_lookahead_and_advance_move_one_cursor():
    packet = PacketIn(bytes.fromhex("1234 5678 9a"))
    header = Small()
    packet.extract(header)
    assert (header.a, header.b) == (0x1, 0x234)
    packet.advance(8)
    assert packet.lookahead_bits(4) == 0x7
    packet.extract(header)
    assert (header.a, header.b) == (0x7, 0x89A)
    assert packet.rest() == b""
    assert packet.length() == 5


def test_headers_may_start_anywhere():
    packet = PacketIn(bytes.fromhex("1234 56"))
    odd, header = Odd(), Small()
    packet.extract(odd)
    packet.extract(header)
    assert odd.a == 0x12 >> 3
    assert header.pack() == (0x123456 >> 3) & 0xFFFF
    assert packet.rest() == b""


def test_advancing_by_parts_of_bytes_is_an_invalid_argument():
    with pytest.raises(ParserError, match="ParserInvalidArgument"):
        PacketIn(bytes(4)).advance(4)


def test_rest_is_what_was_not_read():
    packet = PacketIn(b"\x12\x34payload")
    packet.extract(Small())
    assert packet.rest() == b"payload"


@pytest.mark.parametrize("read", [lambda p: p.extract(Small()), lambda p: p.lookahead_bits(9), lambda p: p.advance(16)])
def test_reading_past_the_end_is_a_parser_error(read):
    packet = PacketIn(b"\x12")
    with pytest.raises(ParserError, match="PacketTooShort"):
        read(packet)
    assert packet.position == 0


def test_emit_skips_invalid_headers_and_joins_odd_widths():
    out = PacketOut()
    out.emit(Small(0xA, 0xBCD))
    out.emit(Small(1, 2, valid=False))
    out.emit(Odd(0b10101))
    out.emit(Odd(0b00011))
    out.emit(Small(0xF, 0x0F0))
    # 10101 00011 1111 000011110000 fill 26 bits; six zero bits follow.
    assert out.data(b"tail") == bytes.fromhex("abcd") + (0b10101000111111000011110000 << 6).to_bytes(4, "big") + b"tail"
