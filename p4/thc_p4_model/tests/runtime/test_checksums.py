import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thc_p4_model.checksums import CRC8, CRC16, CRC64, Crc, csum16, pad_to_bytes, xor_words


@given(st.binary(max_size=64))
def test_csum16_is_the_folded_sum_of_words(data):
    padded = data + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(padded[place : place + 2], "big") for place in range(0, len(padded), 2))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    assert csum16(data) == total ^ 0xFFFF


def test_csum16_of_an_ipv4_header_is_the_textbook_one():
    assert csum16(bytes.fromhex("45000073000040004011 0000 c0a80001c0a800c7")) == 0xB861


@pytest.mark.parametrize(
    ("crc", "check"),
    [
        (CRC8, 0xF4),
        (CRC16, 0xBB3D),
        (CRC64, 0x6C40DF5F0B497347),
        (Crc(16, 0x1021, 0xFFFF), 0x29B1),  # CCITT
        (Crc(32, 0x1EDC6F41, 0xFFFFFFFF, reflected=True, final_xor=0xFFFFFFFF), 0xE3069283),  # Castagnoli
    ],
)
def test_crc_check_values(crc, check):
    assert crc(b"123456789") == check


@given(st.binary(max_size=64))
def test_crc32_by_parameters_is_zlib(data):
    crc = Crc(32, 0x04C11DB7, 0xFFFFFFFF, reflected=True, final_xor=0xFFFFFFFF)
    assert crc(data) == zlib.crc32(data)


def test_xor_words_fills_the_last_word_with_zeros():
    assert xor_words(b"\x12\x34\x56", 2) == 0x1234 ^ 0x5600


def test_bits_are_padded_behind():
    assert pad_to_bytes(0b101, 3) == b"\xa0"
