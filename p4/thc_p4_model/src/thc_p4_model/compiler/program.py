"""Compiled programs and their instantiation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.codegen_base import ExternInstance
from thc_p4_model.compiler.codegen_types import annotation_map
from thc_p4_model.interfaces import (
    Block,
    CallInfo,
    ExternInfo,
    Location,
    P4Error,
    Package,
    Param,
    ProgramInstance,
    Runtime,
    Table,
    TableInfo,
    TypeInfo,
)


class P4Exit(Exception):  # noqa: N818 - P4's exit statement, not an error
    """Unwinds to the end of the block that runs."""


@dataclass(frozen=True)
class BlockPlan:
    """A block before instantiation."""

    function: str
    decl: s.ParserDecl | s.ControlDecl
    type_info: Callable[[t.Type], TypeInfo]

    def block(self, apply: Callable[..., Any]) -> Block:
        """The block with its function."""
        decl = self.decl
        return Block(
            kind="parser" if isinstance(decl, s.ParserDecl) else "control",
            name=decl.name,
            params=tuple(Param(param.name, param.direction, self.type_info(param.type)) for param in decl.params),
            apply=apply,
            annotations=annotation_map(decl.annotations),
            location=decl.location,
        )


@dataclass(frozen=True)
class PackagePlan:
    """A package before instantiation."""

    type_name: str
    name: str
    args: Mapping[str, Any]
    type_args: tuple[TypeInfo, ...]
    location: Location


@dataclass(frozen=True)
class CompiledProgram:
    """Implements `interfaces.Program`."""

    source: str
    types: Mapping[str, TypeInfo]
    constants: Mapping[str, Any]
    errors: tuple[str, ...]
    tree: s.Program
    """The checked syntax tree, for rules of targets."""
    make: Callable[..., dict[str, Callable[..., Any]]]
    """The generated function `instantiate`."""
    infos: Sequence[Any]
    plan: PackagePlan

    def instantiate(self, runtime: Runtime) -> ProgramInstance:
        """Independent state and blocks."""
        return _Instantiation(self, runtime).run()


class _Instantiation:
    def __init__(self, program: CompiledProgram, runtime: Runtime) -> None:
        self._program = program
        self._runtime = runtime
        self._tables: dict[str, Table] = {}
        self._table_infos: dict[str, TableInfo] = {}
        self._externs: dict[str, Any] = {}
        self._extern_infos: dict[str, ExternInfo] = {}

    def run(self) -> ProgramInstance:
        functions = self._program.make(
            self._new_extern, self._new_table, self._runtime.bind_function, _bind_method, self._program.infos
        )
        return ProgramInstance(
            main=self._package(self._program.plan, functions),
            tables=self._tables,
            table_infos=self._table_infos,
            externs=self._externs,
            extern_infos=self._extern_infos,
        )

    def _new_extern(self, info: ExternInfo, args: tuple[Any, ...], abstract: Mapping[str, Callable[..., Any]]) -> Any:
        info = dataclasses.replace(info, args=args, abstract=abstract)
        self._extern_infos[info.name] = info
        self._externs[info.name] = self._runtime.new_extern(info)
        return self._externs[info.name]

    def _new_table(self, info: TableInfo, instances: Mapping[str, Any]) -> Table:
        info = dataclasses.replace(info, properties={**info.properties, **instances})
        self._table_infos[info.name] = info
        self._tables[info.name] = self._runtime.new_table(info)
        return self._tables[info.name]

    def _package(self, plan: PackagePlan, functions: Mapping[str, Callable[..., Any]]) -> Package:
        args: dict[str, Any] = {}
        for name, value in plan.args.items():
            if isinstance(value, PackagePlan):
                args[name] = self._package(value, functions)
            elif isinstance(value, BlockPlan):
                args[name] = value.block(functions[value.function])
            elif isinstance(value, ExternInstance):
                args[name] = self._externs[value.name]
            else:
                args[name] = value
        return Package(plan.type_name, plan.name, args, plan.type_args, plan.location)


def _bind_method(instance: Any, method: str, call: CallInfo) -> Callable[..., Any]:
    """The function behind one call of a method."""
    binder = getattr(instance, f"bind_{method}", None)
    if binder is not None:
        bound: Callable[..., Any] = binder(call)
        return bound
    function: Callable[..., Any] | None = getattr(instance, method, None)
    if function is None:
        raise P4Error(call.location, f"method {method} is not supported by the model")
    return function
