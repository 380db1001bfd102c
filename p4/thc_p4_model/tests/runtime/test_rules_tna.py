from pathlib import Path

import pytest

from thc_p4_model import P4Error, compile_program
from thc_p4_model.architectures import TnaSwitch
from thc_p4_model.rules_tna import phv_bits

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = (PROGRAMS / "tna_commands.p4").read_text()


@pytest.fixture
def switch_with(tmp_path):
    """A switch running the test program with one piece of text replaced."""

    def make(old: str, new: str) -> TnaSwitch:
        assert SOURCE.count(old) == 1
        path = tmp_path / "changed.p4"
        path.write_text(SOURCE.replace(old, new))
        return TnaSwitch(compile_program(path, [PROGRAMS]))

    return make


def line_of(text: str) -> int:
    return SOURCE[: SOURCE.index(text)].count("\n") + 1


APPLY = "        ports.apply();\n"


def test_a_table_twice_on_one_path(switch_with):
    with pytest.raises(
        P4Error, match=rf"changed.p4:{line_of(APPLY) + 1}: ports is applied twice .* line {line_of(APPLY)}"
    ):
        switch_with(APPLY, APPLY + APPLY)


def test_a_table_twice_on_one_of_several_paths(switch_with):
    with pytest.raises(P4Error, match="applied twice"):
        switch_with(APPLY, f"if (hdr.command.index == 0) {{ {APPLY} }}\n{APPLY}")


@pytest.mark.parametrize(
    "exclusive",
    [
        f"if (hdr.command.index == 0) {{ {APPLY} }} else {{ {APPLY} }}",
        f"if (hdr.command.index == 0) {{ {APPLY} exit; }} {APPLY}",
        "if (!ports.apply().hit) { return; }",
    ],
)
def test_exclusive_paths_may_apply_the_same_table(switch_with, exclusive):
    switch_with(APPLY, exclusive)


@pytest.mark.parametrize("operation", ["hdr.command.value * 3", "hdr.command.value / 2", "hdr.command.value % 2"])
def test_match_action_units_do_not_multiply(switch_with, operation):
    with pytest.raises(P4Error, match=rf"changed.p4:{line_of('meta.session = 5;')}: .*cannot compute"):
        switch_with("meta.session = 5;", f"meta.session = 5; hdr.command.value = {operation};")


def test_constants_may_be_multiplied(switch_with):
    switch_with("meta.session = 5;", "meta.session = 5; hdr.command.value = 3 * 4;")


def test_phv_bits_are_those_of_headers_and_metadata():
    switch = TnaSwitch(compile_program(PROGRAMS / "tna_commands.p4"))
    command, resubmit, mirror, mark, data, session = 64, 64, 8, 8, 32, 10
    expected = command + resubmit + mirror + mark + data + session
    assert phv_bits(switch.pipeline(0)) == {"ingress": expected, "egress": expected}


def test_too_much_for_the_packet_header_vector(switch_with):
    message = r"changed.p4:\d+: headers and metadata of TestIngressParser take \d+ of 4096 PHV bits: .*big 4096"
    with pytest.raises(P4Error, match=message):
        switch_with("    bit<8>     mark;", "    bit<8>     mark;\n    bit<4096>  big;")


def test_four_register_actions(switch_with):
    action = """
    RegisterAction<bit<32>, bit<8>, bit<32>>(sums) more_{} = {{
        void apply(inout bit<32> sum) {{ sum = 0; }}
    }};"""
    old = "    RegisterParam<bit<32>>(100) limit;"
    with pytest.raises(P4Error, match=r"register TestIngress.sums has more than 4 RegisterActions"):
        switch_with(old, "".join(action.format(number) for number in range(3)) + "\n" + old)


def test_the_egress_parser_of_tofino_1_reads_160_bytes(switch_with):
    old = "        packet.extract(meta.mirror);\n"
    switch = switch_with(old, f"{old}        packet.advance(1000);\n")
    switch.table_add("ports", [0xAA], "to_port", [2])
    with pytest.raises(P4Error, match=r"egress parser TestEgressParser read 1\d\d bytes; Tofino 1 allows 160"):
        switch.process(0, b"\xaa" * 8 + bytes(200))
