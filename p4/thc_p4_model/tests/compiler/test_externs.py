"""The calling convention of thc_p4_model.interfaces, from the side of an extern."""

from collections.abc import Callable
from typing import Any

import pytest

from thc_p4_model.interfaces import CallInfo, ExternInfo, P4Error

PROGRAM = """
struct pair_t {{ bit<16> a; bit<16> b; }}
struct data_t {{ bit<16> x; bit<16> y; bit<16> z; pair_t pair; }}
extern Cell<T> {{
    Cell(T value);
    T swap(in T value);
    void read(out T value);
    bool step(inout T value, out bit<8> count);
}}
extern Worker<T> {{
    Worker(Cell<T> cell);
    void run(in bit<16> argument);
    abstract void work(inout T value, in bit<16> argument, out bit<16> result);
}}
extern void log<T>(in T data, @optional in bit<8> level);
extern bit<16> log2(in bit<16> value);
control C(inout data_t d);
package Top(C c, Cell<bit<16>> shared);
{code}
"""


class Cell:
    def __init__(self, info: ExternInfo) -> None:
        self.info = info
        (self.value,) = info.args

    def swap(self, value: int) -> int:
        self.value, value = value, self.value
        return value

    def read(self) -> int:
        value: int = self.value
        return value

    def step(self, value: int) -> tuple[bool, int, int]:
        return value > 3, value + 1, 200


class Worker:
    def __init__(self, info: ExternInfo) -> None:
        (self.cell,) = info.args
        self.work = info.abstract["work"]

    def bind_run(self, _call: CallInfo) -> Callable[[int], None]:
        def run(argument: int) -> None:
            self.cell.value, result = self.work(self.cell.value, argument)
            self.cell.value += result * 256

        return run


def logger(seen: list[Any]) -> Callable[[CallInfo], Callable[..., None]]:
    return lambda call: lambda *args: seen.append((call, args))


@pytest.fixture
def run(instantiate: Callable[..., Any]) -> Callable[..., Any]:
    """Run a control; returns the instance, the data and the log."""

    def make(declarations: str, apply: str, **values: int) -> Any:
        code = f"control Test(inout data_t d) {{ {declarations} apply {{ {apply} }} }}"
        code += "Cell<bit<16>>(9) top; Top(Test(), top) main;"
        seen: list[Any] = []
        externs = {
            "Cell": Cell,
            "Worker": Worker,
            "log": logger(seen),
            "log2": lambda _call: lambda v: v.bit_length() - 1,
        }
        instance = instantiate(PROGRAM.format(code=code), externs)
        block = instance.main.args["c"]
        data = block.params[0].type.new()
        for name, value in values.items():
            setattr(data, name, value)
        block.apply(data)
        return instance, data, seen

    return make


def test_results_and_out_parameters(run: Callable[..., Any]) -> None:
    instance, data, _seen = run(
        "Cell<bit<16>>(5) cell;",
        "bit<8> n; d.y = d.x; bool more = cell.step(d.y, n); cell.read(d.z); d.x = cell.swap(8) + (bit<16>)n;"
        "if (more) { d.z = d.z + log2(d.x); }",
        x=4,
    )
    assert (data.x, data.y, data.z) == (205, 5, 12)
    assert instance.externs["Test.cell"].value == 8
    assert instance.main.args["shared"] is instance.externs["top"]


def test_instances_have_names_and_types(run: Callable[..., Any]) -> None:
    instance, *_rest = run('@name("other") Cell<bit<16>>(5) cell; Cell<pair_t>({1, 2}) pairs;', "")
    assert set(instance.extern_infos) == {"top", "Test.other", "Test.pairs"}
    info = instance.extern_infos["Test.pairs"]
    assert (info.extern, info.args, info.type_args[0].width) == ("Cell", ((1, 2),), 32)


def test_abstract_methods_see_the_control_around_them(run: Callable[..., Any]) -> None:
    declarations = """
        Cell<bit<16>>(5) cell;
        bit<16> total = 1;
        Worker<bit<16>>(cell) worker = {
            void work(inout bit<16> value, in bit<16> argument, out bit<16> result) {
                if (d.x == 7) { value = value + argument; }
                total = total + value;
                result = 2;
            }
        };
    """
    instance, data, _seen = run(declarations, "worker.run(10); worker.run(1); d.y = total; d.pair.a = 3;", x=7)
    assert instance.externs["Test.cell"].value == 15 + 512 + 1 + 512
    assert data.y == (1 + 15 + 15 + 512 + 1) % 65536


def test_calls_are_described(run: Callable[..., Any]) -> None:
    _instance, _data, seen = run("", "log(d.pair); log({d.x, 8w3}, 2); log<bit<4>>(level = 1, data = 5);", x=6)
    (pair, _), (listed, listed_args), (given, given_args) = seen
    assert pair.params[0].type.name == "pair_t"
    assert (listed.params[0].type.pack(listed_args[0]), listed.params[0].type.width) == (6 << 8 | 3, 24)
    assert (listed.constants, listed_args[1], len(pair.params)) == ((None, 2), 2, 1)
    assert (given.type_args[0].name, given_args) == ("bit<4>", (5, 1))


def test_every_instance_has_its_own_state(instantiate: Callable[..., Any]) -> None:
    code = "control Test(inout data_t d) { Cell<bit<16>>(5) cell; apply { d.x = cell.swap(d.x); } }"
    code += "Cell<bit<16>>(9) top; Top(Test(), top) main;"
    one = instantiate(PROGRAM.format(code=code), {"Cell": Cell})
    two = instantiate(PROGRAM.format(code=code), {"Cell": Cell})
    block = one.main.args["c"]
    block.apply(block.params[0].type.new())
    assert (one.externs["Test.cell"].value, two.externs["Test.cell"].value) == (0, 5)


def test_methods_the_runtime_lacks_are_errors_with_a_line(run: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.delattr(Cell, "swap")
    with pytest.raises(P4Error, match=r"program\.p4:.*method swap is not supported"):
        run("Cell<bit<16>>(5) cell;", "d.x = cell.swap(1);")
