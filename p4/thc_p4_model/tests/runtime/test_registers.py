import random

import pytest
from model_infos import PAIR, Pair, bit, call_info, extern_info

from thc_p4_model.errors import ControlError
from thc_p4_model.externs.registers import IndexedRegister
from thc_p4_model.externs.tna_registers import Register, RegisterAction, RegisterParam
from thc_p4_model.externs.tna_state import TnaState
from thc_p4_model.interfaces import P4Error

EXECUTE = call_info("execute", ("in", bit(16)), result=bit(32))


@pytest.fixture
def state() -> TnaState:
    state = TnaState(random.Random(0))
    state.begin("ingress", 64)
    return state


def new_register(state, type_=None, size=4, initial=None):
    return Register(extern_info("Register", size, initial, name="In.sums", types=(type_ or bit(32), bit(16))), state)


def new_action(state, register, apply):
    return RegisterAction(extern_info("RegisterAction", register, name="In.add", abstract={"apply": apply}), state)


def test_an_action_changes_the_value_and_returns_its_result(state):
    register = new_register(state, initial=10)
    execute = new_action(state, register, lambda value: (value + 1, value)).bind_execute(EXECUTE)
    assert execute(2) == 10
    assert register.get_range(0, 4) == [10, 10, 11, 10]


def test_an_action_without_result(state):
    register = new_register(state)
    execute = new_action(state, register, lambda value: value + 5).bind_execute(EXECUTE)
    assert execute(0) == 0
    assert register.get(0) == 5


def test_tofino_2_returns_several_results(state):
    call = call_info("execute", ("in", bit(16)), ("out", bit(32)))
    two = new_action(state, new_register(state, initial=3), lambda value: (value, 1, 2)).bind_execute(call)
    one = new_action(state, new_register(state, initial=3), lambda value: (value, 1)).bind_execute(call)
    none = new_action(state, new_register(state, PAIR), lambda _: None).bind_execute(call)
    assert [two(0), one(0), none(0)] == [(1, 2), (1, 0), (0, 0)]


def test_pairs_are_changed_in_place(state):
    register = new_register(state, PAIR)

    def apply(pair):
        pair.round, pair.count = 3, pair.count + 1
        return pair.count

    execute = new_action(state, register, apply).bind_execute(EXECUTE)
    assert execute(1) == 1
    assert register.get(1) == {"round": 3, "count": 1}
    assert register.get(0) == {"round": 0, "count": 0}


def test_initial_pairs_are_not_shared(state):
    register = new_register(state, PAIR, initial=Pair(1, 2))
    register.values[0].round = 9
    assert register.get(1) == {"round": 1, "count": 2}


def test_one_access_per_packet_and_pass(state):
    register = new_register(state)
    execute = new_action(state, register, lambda value: (value, value)).bind_execute(EXECUTE)
    execute(0)
    with pytest.raises(P4Error, match=r"test.p4:9: second access to register In.sums"):
        execute(1)
    state.begin("ingress", 64)
    execute(1)


def test_reading_counts_as_an_access(state):
    register = new_register(state)
    register.bind_read(call_info("read", ("in", bit(16))))(0)
    with pytest.raises(P4Error, match="second access"):
        register.bind_write(call_info("write", ("in", bit(16)), ("in", bit(32))))(0, 1)


def test_at_most_four_actions(state):
    register = new_register(state)
    for _ in range(4):
        new_action(state, register, lambda value: value)
    with pytest.raises(P4Error, match=r"test.p4:7: register In.sums has more than 4"):
        new_action(state, register, lambda value: value)


@pytest.mark.parametrize("width", [2, 24, 64, 128])
def test_stateful_alus_take_certain_widths(state, width):
    with pytest.raises(P4Error, match="stateful ALU"):
        new_register(state, bit(width))


def test_an_index_past_the_end_is_an_error_with_the_line(state):
    execute = new_action(state, new_register(state), lambda value: value).bind_execute(EXECUTE)
    with pytest.raises(P4Error, match=r"test.p4:9: index 4 is outside In.sums, which has 4"):
        execute(4)


def test_parameters_belong_to_the_control_plane(state):
    param = RegisterParam(extern_info("RegisterParam", 7, types=(bit(8),)), state)
    assert param.read() == 7
    param.set(255)
    assert param.read() == 255
    with pytest.raises(ControlError, match="too small"):
        param.set(256)


def test_control_plane_values_are_checked(state):
    register = new_register(state, PAIR)
    register.set(0, {"round": 1, "count": 2})
    register.reset(1)
    assert register.get(0) == {"round": 1, "count": 2}
    register.reset()
    assert register.get(0) == {"round": 0, "count": 0}
    for value in (5, {"round": 1}, {"round": 1 << 32, "count": 0}):
        with pytest.raises(ControlError):
            register.set(0, value)
    with pytest.raises(ControlError, match="outside"):
        register.get(4)
    with pytest.raises(ControlError, match="outside"):
        register.reset(2, 3)


def test_v1model_registers_check_their_index(state):
    register = IndexedRegister(extern_info("register", 2, types=(bit(8),)), state)
    write = register.bind_write(call_info("write", ("in", bit(32)), ("in", bit(8))))
    read = register.bind_read(call_info("read", ("out", bit(8)), ("in", bit(32))))
    write(1, 9)
    assert [read(0), read(1)] == [0, 9]
    for use in (lambda: read(2), lambda: write(2, 0)):
        with pytest.raises(P4Error, match=r"test.p4:9: index 2 is outside"):
            use()
