from pathlib import Path

import pytest

from thc_p4_model import compile_program
from thc_p4_model.architectures import new_switch
from thc_p4_model.stf import StfError, run_stf

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def program():
    return compile_program(PROGRAMS / "v1model_commands.p4")


@pytest.mark.parametrize(
    ("source", "defines", "test", "packets"),
    [
        ("v1model_commands.p4", {}, "v1model_commands.stf", 13),
        ("tna_commands.p4", {"__TARGET_TOFINO__": "1"}, "tna_commands.stf", 13),
        ("tna_commands.p4", {"__TARGET_TOFINO__": "2"}, "tna_commands.stf", 13),
    ],
)
def test_commands(source, defines, test, packets):
    switch = new_switch(compile_program(PROGRAMS / source, defines=defines))
    assert run_stf(switch, PROGRAMS / test) == packets


FORWARDED = "packet 0 00 01 00 00 00000000 beef\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (FORWARDED + "expect 0 00 01 00 00 00000000 bee0", 2, "port 0 sent 0001"),
        (FORWARDED + "expect 0 00 01 $", 2, "port 0 sent"),
        (FORWARDED + "expect 0 00 01 00 00 00000000 beef 00", 2, "port 0 sent"),
        (FORWARDED, 1, "unexpected frame"),
        (FORWARDED + "no_packet", 2, "unexpected frame"),
        ("expect 3 00", 1, "port 3 did not send 00"),
        ("expect 3", 1, "no frame on port 3"),
        ("frobnicate 1", 1, "unknown command frobnicate"),
        ("add ports index:1 to_prot(port:2)", 1, "did you mean TestIngress.to_port"),
        ("add ports", 1, "cannot read"),
        ("\n# comment\nadd ports index:256 to_port(port:2)", 3, "too small for 0x100"),
        ("packet 0 0g", 1, "hexadecimal"),
        ("remove first", 1, "no entry was added as first"),
        ("check_counter packets(0) == 1", 1, "is 0, not == 1"),
        ("check_register sums 9 == 1", 1, "outside"),
        ("set_loopback 1", 1, "for TNA"),
    ],
)
def test_a_wrong_test_says_where(program, tmp_path, text, line, message):
    path = tmp_path / "wrong.stf"
    path.write_text(text)
    with pytest.raises(StfError, match=rf"wrong.stf:{line}: .*{message}"):
        run_stf(new_switch(program), path)


def test_wildcards_longer_frames_entries_by_name_and_frames_of_any_kind(program, tmp_path):
    path = tmp_path / "right.stf"
    path.write_text(
        "add ports index:0b01 to_port(port:0x2) = first\n"
        f"{FORWARDED}expect 2 00 ** 0* 00\n"
        "remove first\n"
        f"{FORWARDED}expect 0\n"
        "add ports index:1 to_port(port:3)\nremove all\nsetdefault ports to_port(port:4)\n"
        f"{FORWARDED}wait\nexpect 4 0001000000000000beef$\n"
    )
    assert run_stf(new_switch(program), path) == 3
