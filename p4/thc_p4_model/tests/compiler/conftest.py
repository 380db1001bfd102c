"""Programs written in the tests, compiled and called without an architecture around them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from thc_p4_model import compile_program
from thc_p4_model.compiler.program import CompiledProgram
from thc_p4_model.interfaces import CallInfo, ExternInfo, ProgramInstance, TableInfo
from thc_p4_model.tables import Table


class PlainRuntime:
    """Real tables, and the externs a test brings."""

    def __init__(self, externs: Mapping[str, Any]) -> None:
        self._externs = externs

    def new_extern(self, info: ExternInfo) -> Any:
        return self._externs[info.extern](info)

    def new_table(self, info: TableInfo) -> Table:
        return Table(info, default_size=16)

    def bind_function(self, call: CallInfo) -> Callable[..., Any]:
        function: Callable[..., Any] = self._externs[call.name](call)
        return function


@pytest.fixture
def compile_source(tmp_path: Path) -> Callable[..., CompiledProgram]:
    """Compile P4 text; core.p4 is included in front of its first line."""

    def compile_text(text: str, **options: Any) -> CompiledProgram:
        path = tmp_path / "program.p4"
        path.write_text("#include <core.p4>\n" + text)
        return compile_program(path, [tmp_path], **options)

    return compile_text


@pytest.fixture
def instantiate(compile_source: Callable[..., CompiledProgram]) -> Callable[..., ProgramInstance]:
    """Compile P4 text and instantiate it."""

    def make(text: str, externs: Mapping[str, Any] | None = None) -> ProgramInstance:
        return compile_source(text).instantiate(PlainRuntime(externs or {}))

    return make


@pytest.fixture
def run_control(compile_source: Callable[..., CompiledProgram]) -> Callable[..., dict[str, Any]]:
    """Run `apply` of a control over `struct data_t` whose fields are given; gives the fields afterwards."""

    def run(
        fields: str,
        apply: str,
        values: Mapping[str, Any],
        before: str = "",
        top: str = "",
        externs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        program = compile_source(
            f"{top}\nstruct data_t {{ {fields} }}\ncontrol C(inout data_t d);\npackage Top(C c);\n"
            f"control Test(inout data_t d) {{ {before} apply {{ {apply} }} }}\nTop(Test()) main;\n"
        )
        block = program.instantiate(PlainRuntime(externs or {})).main.args["c"]
        data = block.params[0].type.new()
        for name, value in values.items():
            setattr(data, name, value)
        block.apply(data)
        return {name: getattr(data, name) for name in data.FIELDS}

    return run
