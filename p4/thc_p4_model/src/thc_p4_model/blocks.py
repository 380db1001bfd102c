"""Calls of a program's parsers and controls, whose parameters are found by their types."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.walk import walk
from thc_p4_model.interfaces import Block, Kind, P4Error, Package, TypeInfo


def block_of(package: Package, name: str) -> Block:
    """The block given for a parameter of the package."""
    block = package.args.get(name)
    if not isinstance(block, Block):
        raise P4Error(package.location, f"package {package.type_name}: parameter {name} is not a parser or control")
    return block


def bind_by_type(block: Block, fixed: int) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """A call of a block: the first `fixed` arguments in order, the rest (optional ones) looked up by type name."""
    apply = block.apply
    names = [param.type.name for param in block.params[fixed:]]

    def call(first: tuple[Any, ...], by_type: Mapping[str, Any]) -> None:
        apply(*first, *(by_type[name] for name in names))

    return call


def field_paths(type_info: TypeInfo, index: int) -> list[tuple[str, ...]]:
    """Attribute paths of the fields annotated with `@field_list(index)`, in structs and structs in them."""
    paths: list[tuple[str, ...]] = []
    for (name, field), attribute in zip(type_info.fields, type_info.new().FIELDS, strict=True):
        if index in type_info.field_annotations.get(name, {}).get("field_list", ()):
            paths.append((attribute,))
        elif field.kind is Kind.STRUCT:
            paths += [(attribute, *rest) for rest in field_paths(field, index)]
    return paths


@functools.lru_cache(maxsize=16)
def controls_use(program: s.Program, type_name: str, field: str) -> bool:
    """Whether a control of the program names this field of a header or struct type."""
    controls = [declaration for declaration in program.declarations if isinstance(declaration, s.ControlDecl)]
    return any(
        isinstance(node, s.Member) and node.name == field and str(node.base.type) == type_name
        for control in controls
        for node in walk(control)
    )
