"""Names of p4c's tofino1_base.p4 and tofino2_base.p4: each compiles, or an error and README say that it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thc_p4_model.architectures import new_switch
from thc_p4_model.compiler.unsupported import UNSUPPORTED
from thc_p4_model.interfaces import P4Error

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAM = """#include <{tna}.p4>
header a_h {{ bit<16> a; }}
struct headers {{ a_h h; {field} }}
struct meta {{ bit<16> x; }}
parser P(packet_in p, out headers h, out meta m, out ingress_intrinsic_metadata_t i) {{
    {parser}
    state start {{ p.extract(i); p.advance(PORT_METADATA_SIZE); p.extract(h.h); {state} transition accept; }} }}
control I(inout headers h, inout meta m, in ingress_intrinsic_metadata_t i,
          in ingress_intrinsic_metadata_from_parser_t f, inout ingress_intrinsic_metadata_for_deparser_t d,
          inout ingress_intrinsic_metadata_for_tm_t t) {{
    {control} apply {{ t.ucast_egress_port = 2; t.bypass_egress = 1; {apply} }} }}
control D(packet_out p, inout headers h, in meta m, in ingress_intrinsic_metadata_for_deparser_t d) {{
    {deparser} apply {{ {emit} p.emit(h.h); }} }}
parser EP(packet_in p, out headers h, out meta m, out egress_intrinsic_metadata_t e) {{
    state start {{ p.extract(e); transition accept; }} }}
control E(inout headers h, inout meta m, in egress_intrinsic_metadata_t e, in egress_intrinsic_metadata_from_parser_t f,
          inout egress_intrinsic_metadata_for_deparser_t d, inout egress_intrinsic_metadata_for_output_port_t o) {{
    apply {{ }} }}
control ED(packet_out p, inout headers h, in meta m, in egress_intrinsic_metadata_for_deparser_t d) {{ apply {{ }} }}
Pipeline(P(), I(), D(), EP(), E(), ED()) pipe;
Switch(pipe) main;
"""
PARTS = ("field", "parser", "state", "control", "apply", "deparser", "emit")
BOTH = ("tna", "t2na")
FRAME = bytes.fromhex("1234") + bytes(62)

HEADERS = ("pktgen_timer_header_t", "pktgen_port_down_header_t", "pktgen_recirc_header_t", "ptp_metadata_t")
CHECKSUM = {"parser": "Checksum() x;", "state": "x.subtract_all_and_deposit(m.x);"}
PREDICATE = {
    "control": "Register<bit<16>, bit<1>>(2) r;"
    "RegisterAction<bit<16>, bit<1>, bit<16>>(r) a = { void apply(inout bit<16> value) { } };",
    "apply": "m.x = a.predicate();",
}
PROFILE = "table x { actions = { NoAction; } implementation = ActionProfile(3); }"
SUPPORTED = [
    *((tna, {"field": f"{header} x;"}) for tna in BOTH for header in HEADERS),
    ("t2na", {"field": "pktgen_deparser_header_t x; pktgen_pfc_header_t y;"}),
    ("tna", {"apply": "SelectorMode_t x = SelectorMode_t.FAIR; if (x == SelectorMode_t.RESILIENT) { m.x = 1; }"}),
    ("tna", {"apply": "if (f.parser_err == PARSER_ERROR_DST_CONT) { m.x = 1; }"}),
    ("t2na", {"apply": "if (f.parser_err == PARSER_ERROR_CSUM_MBE) { m.x = 1; }"}),
    ("tna", {"parser": "ParserPriority() x; ParserCounter() y;", "state": "x.set(3); y.set(4); y.decrement(1);"}),
]
REFUSED = [
    ("tna", {"control": "DirectRegister<bit<16>>() x;"}, "DirectRegister"),
    ("tna", {"control": "Alpm() x;"}, "Alpm"),
    ("t2na", {"control": "DirectMeter(MeterType_t.BYTES) x;"}, "DirectMeter"),
    ("tna", {"control": "Meter<bit<9>>(512, MeterType_t.BYTES) x;"}, "Meter"),
    ("t2na", {"control": "MathUnit<bit<16>>(MathOp_t.DIV, 3) x;"}, "MathUnit"),
    ("tna", {"control": "action a(in MathOp_t op) { }"}, "MathOp_t"),
    ("tna", {"control": PROFILE}, "ActionProfile"),
    ("tna", {"apply": "MathOp_t\nx;"}, "MathOp_t"),
    ("tna", {"field": "MathOp_t x;"}, "MathOp_t"),
    ("tna", {"apply": "invalidate(m.x);"}, "invalidate"),
    ("tna", {"apply": "bool b = is_validated(h.h);"}, "is_validated"),
    ("tna", CHECKSUM, "Checksum.subtract_all_and_deposit"),
    ("tna", {"parser": "ParserCounter() x;", "state": "x.set(8w5, 15, 2, 3, 1);"}, "ParserCounter.set"),
    ("tna", PREDICATE, "RegisterAction.predicate"),
]


def source(tna: str, parts: dict[str, str]) -> str:
    return PROGRAM.format(tna=tna, **{part: parts.get(part, "") for part in PARTS})


@pytest.mark.parametrize(("tna", "parts"), SUPPORTED)
def test_names_that_compile(compile_source: Callable[..., Any], tna: str, parts: dict[str, str]) -> None:
    assert new_switch(compile_source(source(tna, parts))).process(1, FRAME) == [(2, FRAME)]


@pytest.mark.parametrize(("tna", "parts", "name"), REFUSED)
def test_names_that_are_refused(compile_source: Callable[..., Any], tna: str, parts: dict[str, str], name: str) -> None:
    with pytest.raises(P4Error, match=rf"program\.p4:\d+: {name} .*is not supported by the model"):
        new_switch(compile_source(source(tna, parts)))


@pytest.mark.parametrize("tna", BOTH)
def test_deprecated_constructors_without_a_type(compile_source: Callable[..., Any], tna: str) -> None:
    parts = {
        "apply": "d.mirror_type = 1; d.digest_type = 1; if (i.resubmit_flag == 0) { d.resubmit_type = 2; }",
        "deparser": "Mirror() mirror; Resubmit() again; Digest<a_h>() digest;",
        "emit": "if (d.mirror_type == 1) { mirror.emit(5); } if (d.digest_type == 1) { digest.pack(h.h); }"
        " if (d.resubmit_type == 2) { again.emit(); }",
    }
    switch = new_switch(compile_source(source(tna, parts)))
    switch.mirror_session_set(5, port=8)
    assert sorted(switch.process(1, FRAME)) == [(2, FRAME), (8, FRAME), (8, FRAME)]
    assert [data for _name, data in switch.take_digests()] == [{"a": 0x1234}] * 2


def test_readme_has_the_names() -> None:
    section = README.partition("## Not supported")[2].partition("\n## ")[0]
    for name in UNSUPPORTED:
        assert f"`{name.rpartition('.')[2].rstrip('234')}" in section, name


def test_undeclared_types_are_named(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(P4Error, match=r"syntax error at 'later_t': no type of this name is declared before"):
        compile_source("struct now_t { later_t x; }")
