import random

import pytest
from model_infos import bit, call_info, extern_info, table_info, tuple_of

from thc_p4_model.checksums import csum16
from thc_p4_model.errors import ControlError
from thc_p4_model.externs import tna, v1model
from thc_p4_model.externs.counters import Count, CounterArray
from thc_p4_model.externs.runtime import ExternRuntime
from thc_p4_model.externs.tna_state import TnaState
from thc_p4_model.externs.v1model import V1State
from thc_p4_model.interfaces import P4Error
from thc_p4_model.packet import PacketIn

IPV4 = tuple_of(*[16] * 9)
IPV4_WORDS = (0x4500, 0x0073, 0x0000, 0x4000, 0x4011, 0xC0A8, 0x0001, 0xC0A8, 0x00C7)


@pytest.fixture
def v1() -> V1State:
    state = V1State(random.Random(0))
    state.begin("ingress", PacketIn(b"payload!"), 100)
    return state


@pytest.fixture
def pipe() -> TnaState:
    state = TnaState(random.Random(0))
    state.begin("ingress", 100)
    return state


def v1_function(state, name, *params):
    return v1model.FUNCTIONS[name](state, call_info(name, *params))


CHECKSUM_PARAMS = (("in", bit(1)), ("in", IPV4), ("inout", bit(16)), ("", bit(8)))


def test_update_checksum_only_where_the_condition_holds(v1):
    update = v1_function(v1, "update_checksum", *CHECKSUM_PARAMS)
    assert update(True, IPV4_WORDS, 1, "csum16") == 0xB861
    assert update(False, IPV4_WORDS, 1, "csum16") == 1


def test_checksum_with_payload_covers_what_was_not_parsed(v1):
    update = v1_function(v1, "update_checksum_with_payload", *CHECKSUM_PARAMS)
    words = b"".join(word.to_bytes(2, "big") for word in IPV4_WORDS)
    assert update(True, IPV4_WORDS, 0, "csum16") == csum16(words + b"payload!")


def test_verify_checksum_sets_the_error(v1):
    verify = v1_function(v1, "verify_checksum", *CHECKSUM_PARAMS)
    verify(True, IPV4_WORDS, 0xB861, "csum16")
    assert not v1.checksum_error
    verify(True, IPV4_WORDS, 0xB862, "csum16")
    assert v1.checksum_error


def test_hash_stays_between_base_and_maximum(v1):
    params = (("out", bit(16)), ("in", bit(8)), ("in", bit(16)), ("in", tuple_of(32, 8)), ("in", bit(16)))
    hash_ = v1_function(v1, "hash", *params)
    assert all(100 <= hash_("crc32", 100, (value, 1), 10) < 110 for value in range(50))
    assert hash_("identity", 0, (0x01020304, 5), 1 << 40) == 0x0405
    assert hash_("crc16", 7, (1, 2), 0) == 7


def test_recirculation_belongs_to_egress(v1):
    recirculate = v1_function(v1, "recirculate_preserving_field_list", ("", bit(8)))
    with pytest.raises(P4Error, match=r"test.p4:9: .*egress only"):
        recirculate(1)
    v1.begin("egress", PacketIn(b""), 0)
    recirculate(1)
    assert v1.recirculate_fields == 1


def test_assert_names_its_line(v1):
    check = v1_function(v1, "assert", ("in", bit(1)))
    check(True)
    with pytest.raises(P4Error, match=r"test.p4:9: assert failed"):
        check(False)


def test_unsupported_externs_and_functions_name_the_line(v1):
    runtime = ExternRuntime(v1, v1model.CLASSES, v1model.FUNCTIONS, 1024)
    with pytest.raises(P4Error, match=r"test.p4:7: extern meter is not supported"):
        runtime.new_extern(extern_info("meter", 5, "bytes"))
    with pytest.raises(P4Error, match=r"test.p4:9: function clone3 is not supported"):
        runtime.bind_function(call_info("clone3"))
    with pytest.raises(P4Error, match=r"test.p4:7: .*action profiles"):
        runtime.new_table(table_info(("k", "exact", 8), properties={"implementation": object()}))


def test_counters_count_what_they_are_declared_for(v1):
    count = call_info("count", ("in", bit(32)))
    counters = {
        kind: CounterArray(extern_info("counter", 2, kind), v1) for kind in ("packets", "BYTES", "PACKETS_AND_BYTES")
    }
    for counter in counters.values():
        counter.bind_count(count)(1)
    assert {kind: counter.get(1) for kind, counter in counters.items()} == {
        "packets": Count(1, 0),
        "BYTES": Count(0, 100),
        "PACKETS_AND_BYTES": Count(1, 100),
    }
    with pytest.raises(P4Error, match="index 2 is outside counter"):
        counters["packets"].bind_count(count)(2)
    with pytest.raises(ControlError, match="outside"):
        counters["packets"].get(-1)


def test_direct_counters_count_per_entry(v1):
    counter = v1model.V1DirectCounter(extern_info("direct_counter", "packets"), v1)
    runtime = ExternRuntime(v1, v1model.CLASSES, v1model.FUNCTIONS, 1024)
    table = runtime.new_table(table_info(("k", "exact", 8), properties={"counters": counter}))
    table.add([1], "drop")
    for key in (1, 2, 1):
        table.match(key)
    assert [(entry.packets, entry.bytes) for entry in table.entries()] == [(2, 200)]


def test_tna_checksum_of_changed_fields_from_what_it_covered_before(pipe):
    """RFC 1624: subtract the old fields in the parser, add the new ones in the deparser."""
    checksum = tna.Checksum(extern_info("Checksum"), pipe)
    old = (0x1111, 0x2222)
    rest = (0xABCD, 0x0102)
    covered = b"".join(word.to_bytes(2, "big") for word in old + rest)
    subtract = checksum.bind_subtract(call_info("subtract", ("in", tuple_of(16, 16, 16))))
    subtract((csum16(covered), *old))
    update = checksum.bind_update(call_info("update", ("in", tuple_of(16, 16, 16))))
    new = (0x3333, 0x4444)
    expected = csum16(b"".join(word.to_bytes(2, "big") for word in new + rest))
    assert update((*new, checksum.get())) == expected


def test_tna_checksum_verify_is_true_for_errors_and_starts_over_with_the_packet(pipe):
    checksum = tna.Checksum(extern_info("Checksum"), pipe)
    add = checksum.bind_add(call_info("add", ("in", tuple_of(*[16] * 10))))
    add((*IPV4_WORDS, 0xB861))
    assert not checksum.verify()
    pipe.begin("ingress", 64)
    add((*IPV4_WORDS, 0xB860))
    assert checksum.verify()


def test_tna_hash_keeps_the_lower_bits(pipe):
    get = call_info("get", ("in", tuple_of(8, 8)))
    identity = tna.Hash(extern_info("Hash", "IDENTITY", types=(bit(12),)), pipe).bind_get(get)
    assert identity((0xAB, 0xCD)) == 0xBCD
    xor = tna.Hash(extern_info("Hash", "XOR8", types=(bit(8),)), pipe).bind_get(get)
    assert xor((0xF0, 0xFF)) == 0x0F
    with pytest.raises(P4Error, match="RANDOM is not supported"):
        tna.Hash(extern_info("Hash", "RANDOM", types=(bit(8),)), pipe)


@pytest.mark.parametrize(
    ("message", "text"),
    [("{} then {}", "7 then 8"), ("{} only", "7 only"), ("{}{}{}", "78{}"), ("{0} {x} }", "{0} {x} }")],
)
def test_log_msg_replaces_empty_braces_only(v1, caplog, message, text):
    with caplog.at_level("INFO", logger="thc_p4_model"):
        v1_function(v1, "log_msg", ("in", bit(1)), ("in", tuple_of(8, 8)))(message, (7, 8))
    assert caplog.messages[0].endswith(f": {text}")
