import itertools
import threading
from pathlib import Path

import pytest

from thc_p4_model import P4Error, compile_program
from thc_p4_model.architectures import TnaSwitch, V1ModelSwitch, architecture_of
from thc_p4_model.errors import ControlError, PacketLoopError
from thc_p4_model.externs.counters import Count

PROGRAMS = Path(__file__).parent / "programs"
FORWARD, MULTICAST, RECIRCULATE, RESUBMIT, REGISTER_ADD, DIGEST, EXCLUDE, TWICE = 0, 2, 3, 4, 8, 9, 11, 12
CLONE_INGRESS, LOOP = 5, 10  # v1model only


def frame(command: int, index: int = 1, value: int = 0, passes: int = 0) -> bytes:
    return bytes((command, index, passes, 0)) + value.to_bytes(4, "big") + b"\xbe\xef"


def value_of(sent: bytes) -> int:
    return int.from_bytes(sent[4:8], "big")


@pytest.fixture(scope="module")
def v1_program():
    return compile_program(PROGRAMS / "v1model_commands.p4")


@pytest.fixture(scope="module")
def tna_program():
    return compile_program(PROGRAMS / "tna_commands.p4")


@pytest.fixture
def v1(v1_program):
    return V1ModelSwitch(v1_program)


@pytest.fixture
def tna(tna_program):
    switch = TnaSwitch(tna_program, pipes=2)
    switch.table_add("ports", [1], "to_port", [2])
    switch.table_add("ports", [2], "to_port", [128 + 2])
    return switch


def test_architecture_is_what_the_program_includes(v1_program, tna_program):
    assert architecture_of(v1_program) == "v1model"
    assert architecture_of(tna_program) == "tna"
    assert architecture_of(compile_program(PROGRAMS / "tna_commands.p4", defines={"__TARGET_TOFINO__": "2"})) == "t2na"


# Both architectures: packets in flight.


def test_recirculating_packets_let_new_ones_pass(v1):
    v1.inject(1, frame(RECIRCULATE))
    v1.inject(1, frame(FORWARD))
    assert [len(v1.step()) for _ in range(5)] == [0, 1, 0, 0, 1]
    assert v1.in_flight == 0
    assert v1.statistics.recirculated == 3


def test_a_full_recirculation_queue_drops_and_counts(v1_program):
    switch = V1ModelSwitch(v1_program, recirculation_capacity=2)
    for _ in range(3):
        switch.inject(1, frame(RECIRCULATE))
    assert len(switch.drain()) == 2
    assert switch.statistics.recirculation_overflows == 1


def test_endless_loops_are_errors_and_leave_nothing_behind(v1):
    with pytest.raises(PacketLoopError, match="more than 64 passes"):
        v1.process(1, frame(LOOP))
    assert v1.in_flight == 0
    assert v1.process(1, frame(FORWARD)) == [(0, frame(FORWARD))]


# v1model.


def test_v1model_digests_go_to_the_control_plane_once(v1):
    v1.process(1, frame(DIGEST, index=3, value=77))
    assert v1.take_digests() == [(1, {"index": 3, "value": 77})]
    assert v1.take_digests() == []


def compile_changed(tmp_path, program, *changes):
    """A program of programs/ after some (old, new) replacements."""
    source = (PROGRAMS / program).read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new, 1)
    path = tmp_path / program
    path.write_text(source)
    return compile_program(path, [PROGRAMS])


def test_v1model_sends_the_last_digest_of_a_pass(tmp_path):
    call = "digest<digest_t>(1, { hdr.command.index, hdr.command.value });"
    program = compile_changed(tmp_path, "v1model_commands.p4", (call, call + call.replace("(1,", "(2,")))
    switch = V1ModelSwitch(program)
    switch.process(1, frame(DIGEST, index=3, value=77))
    assert switch.take_digests() == [(2, {"index": 3, "value": 77})]


@pytest.mark.parametrize("command", [RECIRCULATE, RESUBMIT])
def test_v1model_parses_the_clone_of_a_returned_packet_with_the_port_it_came_from(tmp_path, command):
    # simple_switch.cpp, "INGRESS CLONING": ingress_port of the second parse is the Packet's, which recirculation and
    # resubmission (clone_no_phv) keep; copy_field_list_and_set_type resets it before egress.
    count = "packets.count("
    program = compile_changed(
        tmp_path,
        "v1model_commands.p4",
        ("transition accept;", "hdr.command.seen = (bit<8>)standard.ingress_port; transition accept;"),
        (count, "if (standard.instance_type != 0) { clone_preserving_field_list(CloneType.I2E, 5, 1); } " + count),
        ("hdr.command.seen = meta.kept;", "hdr.command.value = (bit<32>)standard.ingress_port;"),
    )
    switch = V1ModelSwitch(program)
    switch.mirror_session_set(5, port=8)
    clone = dict(switch.process(6, frame(command, passes=2)))[8]
    assert (clone[3], value_of(clone)) == (6, 0)


def test_v1model_preserves_fields_whose_names_python_uses(tmp_path):
    changes = [("bit<8> kept;", "bit<8> copy;")] + [("meta.kept", "meta.copy")] * 7
    switch = V1ModelSwitch(compile_changed(tmp_path, "v1model_commands.p4", *changes))
    ((_port, sent),) = switch.process(6, frame(RESUBMIT))
    assert sent[3] == 0x4B


TRUNCATE_IN_INGRESS = "if (hdr.command.index == 1) { truncate(9); truncate(8); truncate(10); } packets.count("


@pytest.mark.parametrize(
    ("command", "group", "expected"),
    [(FORWARD, [], [(0, 8)]), (MULTICAST, [(4, 1)], [(4, 10)]), (RECIRCULATE, [], [(0, 8)])],
)
def test_v1model_truncates_what_it_sends_itself(tmp_path, command, group, expected):
    # packet.h: the least length counts, Packet::clone_* (multicast, recirculation) forget it.
    program = compile_changed(tmp_path, "v1model_commands.p4", ("packets.count(", TRUNCATE_IN_INGRESS))
    switch = V1ModelSwitch(program)
    switch.multicast_group_create(7, group)
    sent = switch.process(6, frame(command, passes=2))
    assert [(port, len(data)) for port, data in sent] == expected


def test_v1model_recirculates_whole_packets(tmp_path):
    again = "hdr.command.passes = hdr.command.passes + 1;"
    program = compile_changed(tmp_path, "v1model_commands.p4", (again, "truncate(8); " + again))
    assert [len(data) for _port, data in V1ModelSwitch(program).process(6, frame(RECIRCULATE))] == [10]


def test_v1model_timestamps(tmp_path):
    # simple_switch.cpp sets the ingress timestamp in receive_ only, so a recirculated packet's is reset.
    stamps = "hdr.command.value = standard.ingress_global_timestamp[15:0] ++ standard.enq_timestamp[15:0];"
    program = compile_changed(
        tmp_path,
        "v1model_commands.p4",
        ("if (standard.instance_type == 1 ||", stamps + "if (standard.instance_type == 1 ||"),
    )
    switch = V1ModelSwitch(program, clock_ns=itertools.count(0, 1_000_000).__next__)  # the next millisecond every time
    assert [value_of(data) for _port, data in switch.process(6, frame(FORWARD))] == [1000 << 16 | 2000]
    assert [value_of(data) for _port, data in switch.process(6, frame(RECIRCULATE, passes=2))] == [5000]


def test_v1model_clones_to_a_group_and_a_port(tmp_path):
    # multicast() of simple_switch.cpp leaves the last replication id in the packet that goes to the port.
    rid = ("hdr.command.seen = meta.kept;", "hdr.command.seen = (bit<8>)standard.egress_rid;")
    switch = V1ModelSwitch(compile_changed(tmp_path, "v1model_commands.p4", rid))
    switch.multicast_group_create(9, [(4, 17), (5, 18)])
    switch.mirror_session_set(5, port=8, group=9)
    sent = switch.process(6, frame(CLONE_INGRESS))
    assert [(port, data[3]) for port, data in sent] == [(4, 17), (5, 18), (8, 18), (0, 0)]


def test_v1model_direct_and_indexed_counters(v1):
    v1.table_add("ports", {"index": 1}, "to_port", {"port": 2})
    v1.process(1, frame(FORWARD))
    v1.process(1, frame(FORWARD))
    v1.process(1, frame(FORWARD, index=5))
    (entry,) = v1.table_entries("ports")
    assert (entry.match, entry.action, entry.params, entry.packets) == (
        {"index": 1},
        "TestIngress.to_port",
        {"port": 2},
        2,
    )
    assert v1.counter_read("packets", 1) == Count(3, 30)
    v1.counter_clear("TestIngress.packets")
    assert v1.counter_read("packets", 1) == Count(0, 0)


def test_v1model_refuses_ports_it_does_not_have(v1):
    with pytest.raises(ControlError, match=r"port 511 is not within 0\.\.510"):
        v1.process(511, b"")


# TNA.


def test_registers_belong_to_a_pipe(tna):
    assert [value_of(sent) for _, sent in tna.process(0, frame(REGISTER_ADD, value=5))] == [5]
    assert [value_of(sent) for _, sent in tna.process(128, frame(REGISTER_ADD, value=7))] == [7]
    assert [tna.register_read("sums", 1, pipe) for pipe in (0, 1)] == [5, 7]
    tna.register_write("sums", 1, 9)
    assert [tna.register_read_range("sums", pipe=pipe) for pipe in (0, 1)] == [[0, 9, 0, 0]] * 2
    tna.register_clear("sums", 1, 1, pipe=0)
    assert [tna.register_read("sums", 1, pipe) for pipe in (0, 1)] == [0, 9]
    with pytest.raises(ControlError, match="no pipe 2"):
        tna.register_read("sums", 1, 2)


def test_tables_and_counters_are_those_of_all_pipes(tna):
    for port in (0, 128, 130):
        assert [out for out, _ in tna.process(port, frame(FORWARD, index=2))] == [130]
    assert tna.counter_read("packets", 0) == Count(3, 0)
    assert tna.counter_read("packets", 0, pipe=1) == Count(2, 0)
    entry = next(entry for entry in tna.table_entries("ports") if entry.match == {"index": 2})
    assert (entry.packets, entry.bytes) == (3, 30)


def test_each_pipe_recirculates_through_its_own_port(tna):
    assert tna.loopback_ports() == [68, 128 + 68]
    ((port, sent),) = tna.process(128, frame(RECIRCULATE, value=68))
    assert (port, sent[2]) == (2, 3)
    assert tna.statistics.recirculated == 3


TWO_PIPELINES = {
    "named": "Pipeline(BLOCKS) pipe; Pipeline(BLOCKS) other; Switch(pipe, other) main;",
    "nameless": "Switch(Pipeline(BLOCKS), Pipeline(BLOCKS)) main;",
    "annotated": '@name("pipe") Pipeline(BLOCKS) one; @name("other") Pipeline(BLOCKS) two; Switch(one, two) main;',
}


@pytest.mark.parametrize(("pipelines", "names"), [*TWO_PIPELINES.items()])
def test_two_pipelines_of_the_same_blocks(tmp_path, pipelines, names):
    source = (PROGRAMS / "tna_commands.p4").read_text()
    old = source[source.index("Pipeline(TestIngressParser") :]
    blocks = old[old.index("(") + 1 : old.index(") pipe;")]
    changed = compile_changed(tmp_path, "tna_commands.p4", (old, names.replace("BLOCKS", blocks)))
    switch = TnaSwitch(changed, pipes=2)
    first, second = ("pipe0", "pipe1") if pipelines == "nameless" else ("pipe", "other")
    assert {name.split(".")[0] for name in switch.table_names()} == {first, second}
    switch.table_add(f"{first}.TestIngress.ports", [1], "to_port", [2])
    switch.table_add(f"{second}.TestIngress.ports", [1], "to_port", [128 + 3])
    assert [port for port, _sent in switch.process(1, frame(FORWARD))] == [2]
    assert [port for port, _sent in switch.process(129, frame(FORWARD))] == [128 + 3]
    with pytest.raises(ControlError, match=r"'TestIngress\.ports' is ambiguous"):
        switch.table_add("TestIngress.ports", [2], "to_port", [2])
    for port in (1, 129):
        switch.process(port, frame(REGISTER_ADD, value=port))
    sums = [name for name in switch.register_names() if name.endswith("sums")]
    assert [switch.register_read(name, 1, pipe) for pipe, name in enumerate(sums)] == [1, 129]


def test_a_port_without_loopback_sends(tna):
    ((port, sent),) = tna.process(0, frame(RECIRCULATE, value=20))
    assert (port, sent[2]) == (20, 1)
    tna.set_loopback(20)
    ((port, sent),) = tna.process(0, frame(RECIRCULATE, value=20))
    assert (port, sent[2]) == (2, 3)
    tna.set_loopback(20, False)
    assert tna.process(0, frame(RECIRCULATE, value=20))[0][0] == 20


def test_multicast_exclusion(tna):
    tna.multicast_group_create(7, [(2, 17), (3, 17), (4, 18), (5, 19, 3)])
    tna.multicast_exclude_ports(4, [3, 4])
    # Level 1 excludes the node of id 3; level 2 excludes ports 3 and 4 for replication id 17 only.
    assert [(port, sent[3]) for port, sent in tna.process(0, frame(EXCLUDE))] == [(2, 17), (4, 18)]


def test_groups_are_created_once_and_numbered_from_one(tna):
    tna.multicast_group_create(1, [(1, 0)])
    with pytest.raises(ControlError, match="exists already"):
        tna.multicast_group_create(1, [])
    with pytest.raises(ControlError, match=r"within 1\.\.65535"):
        tna.multicast_group_create(0, [])
    tna.multicast_group_delete(1)
    with pytest.raises(ControlError, match="no multicast group 1"):
        tna.multicast_group_delete(1)


def test_two_accesses_to_a_register_are_an_error_with_the_line(tna):
    source = (PROGRAMS / "tna_commands.p4").read_text().splitlines()
    line = next(number for number, text in enumerate(source, start=1) if "read_value.execute" in text)
    with pytest.raises(P4Error, match=rf"tna_commands.p4:{line}: second access to register TestIngress.sums"):
        tna.process(0, frame(TWICE))
    assert tna.process(0, frame(FORWARD)) != []


def test_tna_digests_carry_names(tna):
    tna.process(0, frame(DIGEST, index=2, value=9))
    assert tna.take_digests() == [("TestIngressDeparser.digest", {"index": 2, "value": 9})]


def test_register_parameters_are_set_by_the_control_plane(tna):
    tna.register_param_set("limit", 7)
    ((_, sent),) = tna.process(0, frame(10, value=1))
    assert value_of(sent) == 7
    assert tna.register_read("pairs", 1) == {"round": 1, "count": 7}
    assert tna.register_read("pairs", 0) == {"round": 0, "count": 5}


def test_ports_of_pipes_the_switch_does_not_have(tna):
    with pytest.raises(ControlError, match="no port 256: the switch has 2 pipes"):
        tna.process(256, b"")


def test_short_packets_are_dropped_by_the_ingress_parser(tna):
    assert tna.process(0, b"\x00\x01") == []
    assert tna.statistics.parser_errors == 1


APPLY = "apply {\n        packets.count(0);"
SEND_PARSER_ERR = (
    APPLY,
    f"{APPLY} for_tm.ucast_egress_port = 5; hdr.command.setValid();"
    " hdr.command.value = (bit<32>)from_parser.parser_err; exit;",
)
EXTRACT = "packet.extract(hdr.command);\n        transition accept;"


def test_an_ingress_that_looks_at_parser_err_gets_short_packets(tmp_path):
    switch = TnaSwitch(compile_changed(tmp_path, "tna_commands.p4", SEND_PARSER_ERR))
    ((port, sent),) = switch.process(0, b"\x00\x01")
    assert (port, value_of(sent)) == (5, 0x0002)


def test_parser_timeouts_have_their_own_error_bit(tmp_path):
    spin = EXTRACT.replace("accept;", "spin; } state spin { transition spin;")
    switch = TnaSwitch(compile_changed(tmp_path, "tna_commands.p4", SEND_PARSER_ERR, (EXTRACT, spin)))
    ((port, sent),) = switch.process(0, frame(FORWARD))
    assert (port, value_of(sent)) == (5, 0x0008)


def test_a_field_of_the_same_name_elsewhere_does_not_keep_short_packets(tmp_path):
    session = "    MirrorId_t session;"
    field = (session, f"{session}\n    bit<16>    parser_err;")
    use = (APPLY, f"{APPLY} meta.parser_err = 1;")
    assert TnaSwitch(compile_changed(tmp_path, "tna_commands.p4", field, use)).process(0, b"\x00\x01") == []


def test_names_that_do_not_exist_are_explained(tna):
    with pytest.raises(ControlError, match=r"no table 'prots'; did you mean TestIngress.ports"):
        tna.table_add("prots", [1], "to_port", [2])
    with pytest.raises(ControlError, match=r"no register 'sum'"):
        tna.register_read("sum", 0)
    assert tna.register_read("pipe.TestIngress.sums", 0) == 0


def test_the_control_plane_works_beside_running_packets(tna):
    stop = threading.Event()
    errors = []

    def change() -> None:
        try:
            while not stop.is_set():
                tna.table_add("ports", [9], "to_port", [3])
                tna.table_delete("ports", [9])
        except ControlError as error:
            errors.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        ports = {port for _ in range(300) for port, _ in tna.process(0, frame(FORWARD, index=9))}
    finally:
        stop.set()
        thread.join(timeout=10)
    assert errors == []
    assert ports <= {3}
