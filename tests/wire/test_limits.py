"""Limits of wire.toml where something else depends on them: literals of a type, widths of fields."""

from typing import get_args, get_type_hints

from byteps_thc import ServerCodes
from byteps_thc._base.wire import layout
from thc_switch.wire import Header, HelloPayload


def literals(setting: str) -> tuple[object, ...]:
    """Return the values of a Literal, or of a union of Literals."""
    kinds = get_args(get_type_hints(ServerCodes)[setting])
    return tuple(value for kind in kinds for value in get_args(kind) or (kind,))


def test_config_takes_the_code_and_value_widths_of_the_wire():
    assert literals("bits") == layout.CODE_BITS
    assert literals("value_bits") == (*layout.VALUE_BITS, "auto")


def test_numbers_fit_their_fields():
    assert layout.HEADER_BYTES == Header.SIZE_BYTES
    header, hello = dict(Header.FIELDS), dict(HelloPayload.FIELDS)
    assert header["payload_count"] >= layout.MAX_CODES_PER_PACKET.bit_length()
    assert hello["codes_per_packet"] >= layout.MAX_CODES_PER_PACKET.bit_length()
    assert hello["granularity"] >= layout.MAX_GRANULARITY.bit_length()
    assert header["num_workers"] >= layout.MAX_WORKERS.bit_length()
