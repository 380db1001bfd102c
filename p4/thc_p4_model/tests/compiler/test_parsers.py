from collections.abc import Callable
from typing import Any

import pytest

from thc_p4_model.interfaces import ParserError
from thc_p4_model.packet import PacketIn, PacketOut

PROGRAM = """
error {{ Large }}
header one_t {{ bit<8> v; }}
header two_t {{ bit<4> high; bit<12> low; }}
header options_t {{ bit<8> length; varbit<32> bytes; }}
struct headers_t {{ one_t first; two_t second; one_t[3] stack; options_t options; bit<16> ahead; bit<8> count; }}
parser P(packet_in p, out headers_t h);
control D(packet_out p, in headers_t h);
package Top(P p, D d);
parser Sub(packet_in p, out one_t one) {{ state start {{ p.extract(one); transition accept; }} }}
parser Test(packet_in p, out headers_t h) {{ {states} }}
control Deparse(packet_out p, in headers_t h) {{
    apply {{ p.emit(h.first); p.emit(h.second); p.emit(h.stack); p.emit(h.options); }}
}}
Top(Test(), Deparse()) main;
"""


@pytest.fixture
def parse(instantiate: Callable[..., Any]) -> Callable[[str, str], Any]:
    """Parse hexadecimal bytes; gives the headers, after checking that the deparser gives the same bytes again."""

    def run(states: str, data: str) -> Any:
        package = instantiate(PROGRAM.format(states=states)).main.args
        headers = package["p"].params[1].type.new()
        packet = PacketIn(bytes.fromhex(data))
        package["p"].apply(packet, headers)
        out = PacketOut()
        package["d"].apply(out, headers)
        assert out.data(packet.rest()) == bytes.fromhex(data)
        return headers

    return run


SELECT = """
    state start {
        p.extract(h.first);
        transition select(h.first.v, h.first.v == 8w3) {
            (1, _): one;
            (0x10 &&& 0xf0, _): masked;
            (0x20 .. 0x2f, false): range;
            (_, true): three;
            (0x40, default): reject;
        }
    }
    state one { h.count = 1; transition accept; }
    state masked { h.count = 2; transition accept; }
    state range { h.count = 3; transition accept; }
    state three { h.count = 4; transition accept; }
"""


@pytest.mark.parametrize(("data", "count"), [("01", 1), ("17", 2), ("20", 3), ("2f", 3), ("03", 4)])
def test_select(parse: Callable[..., Any], data: str, count: int) -> None:
    assert parse(SELECT, data).count == count


@pytest.mark.parametrize(("data", "error"), [("30", "NoMatch"), ("40", "NoError"), ("", "PacketTooShort")])
def test_where_select_does_not_go_on(parse: Callable[..., Any], data: str, error: str) -> None:
    with pytest.raises(ParserError) as raised:
        parse(SELECT, data)
    assert raised.value.name == error


LOOP = """
    state start { p.extract(h.stack.next); h.count = h.count + h.stack.last.v; transition more; }
    state more {
        transition select(h.stack.lastIndex, h.stack.last.v) { (_, 0): accept; (2, 9): accept; default: start; }
    }
"""


def test_loops_over_stacks(parse: Callable[..., Any]) -> None:
    headers = parse(LOOP, "05 07 00")
    assert ([item.v for item in headers.stack], headers.count) == ([5, 7, 0], 12)
    assert [item.valid for item in parse(LOOP, "00 ff").stack] == [True, False, False]
    assert parse(LOOP, "01 01 09").count == 11
    with pytest.raises(ParserError) as raised:
        parse(LOOP, "01 02 03 04")
    assert raised.value.name == "StackOutOfBounds"


def test_where_paths_meet(parse: Callable[..., Any]) -> None:
    states = """
        state start { p.extract(h.first); transition select(h.first.v) { 1: left; 2: right; default: join; } }
        state left { h.count = h.count + 1; transition join; }
        state right { h.count = h.count + 2; transition left; }
        state join { h.count = h.count + 10; transition accept; }
    """
    assert [parse(states, data).count for data in ("00", "01", "02")] == [10, 11, 13]


def test_lookahead_and_bits(parse: Callable[..., Any]) -> None:
    states = """
        state start {
            h.ahead = p.lookahead<bit<16>>();
            two_t two = p.lookahead<two_t>();
            h.count = (bit<8>)two.high;
            transition select(p.lookahead<bit<4>>()) { 0xa: go; }
        }
        state go { p.extract(h.second); transition accept; }
    """
    headers = parse(states, "a123 ff")
    assert (headers.ahead, headers.count, headers.second.high, headers.second.low) == (0xA123, 0xA, 0xA, 0x123)


def test_advance_and_sub_parsers(instantiate: Callable[..., Any]) -> None:
    states = "Sub() sub; state start { p.advance(8); p.advance(8); sub.apply(p, h.first); transition next; }"
    states += "state next { h.count = (bit<8>)p.length(); p.extract<one_t>(_); transition accept; }"
    block = instantiate(PROGRAM.format(states=states)).main.args["p"]
    headers = block.params[1].type.new()
    packet = PacketIn(bytes.fromhex("1234 56 78 9a"))
    block.apply(packet, headers)
    assert (headers.first.v, headers.count, packet.rest()) == (0x56, 5, b"\x9a")


VARBIT = """
    state start {
        p.extract(h.options, (bit<32>)p.lookahead<bit<8>>() * 8);
        transition accept;
    }
"""


def test_varbit(parse: Callable[..., Any]) -> None:
    assert parse(VARBIT, "02 abcd ef").options.bytes == (16, 0xABCD)
    assert parse(VARBIT, "00 ef").options.bytes == (0, 0)
    with pytest.raises(ParserError) as raised:
        parse(VARBIT, "05 0102030405")
    assert raised.value.name == "HeaderTooShort"


def test_verify(parse: Callable[..., Any]) -> None:
    states = "state start { p.extract(h.first); verify(h.first.v < 4, error.Large); transition accept; }"
    assert parse(states, "03").first.v == 3
    with pytest.raises(ParserError) as raised:
        parse(states, "04")
    assert raised.value.name == "Large"


def test_loops_that_read_nothing_end(parse: Callable[..., Any]) -> None:
    states = "state start { h.count = h.count + 1; transition select(h.count) { LAST: accept; default: start; } }"
    assert parse(states.replace("LAST", "9"), "").count == 9
    with pytest.raises(ParserError) as raised:
        parse("state start { transition start; }", "")
    assert raised.value.name == "ParserTimeout"


def test_loops_that_advance_by_nothing_end(parse: Callable[..., Any]) -> None:
    states = """
        state start {
            p.advance((bit<32>)p.lookahead<bit<8>>() * 8);
            h.count = h.count + 1;
            transition select(p.length(), h.count) { (3, 2): accept; default: start; }
        }
    """
    with pytest.raises(ParserError) as raised:
        parse(states, "01 00")
    assert raised.value.name == "ParserTimeout"
    with pytest.raises(ParserError) as raised:
        parse(states, "01 03 ff ff")
    assert raised.value.name == "PacketTooShort"


def test_a_long_chain_of_states(parse: Callable[[str, str], Any]) -> None:
    depth = 150  # Python's parser takes 100 levels of indentation, one per select
    states = "".join(
        f"state s{number} {{ h.count = {number}; transition select(h.first.v > {number}) "
        f"{{ true: s{number + 1}; default: accept; }} }}"
        for number in range(depth)
    )
    states = f"state start {{ p.extract(h.first); transition s0; }} {states} state s{depth} {{ transition reject; }}"
    assert parse(states, "95").count == 149
    assert parse(states, "05").count == 5
    with pytest.raises(ParserError, match=r"^NoError$"):
        parse(states, "96")
