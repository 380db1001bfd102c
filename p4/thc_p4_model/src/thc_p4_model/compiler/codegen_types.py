"""Python classes for headers, structs and unions, and TypeInfos for the runtime."""

import keyword
from collections.abc import Callable
from typing import Any

from thc_p4_model import values
from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.codegen_records import record_source
from thc_p4_model.interfaces import Kind, TypeInfo

_KINDS = {"header": Kind.HEADER, "struct": Kind.STRUCT, "header_union": Kind.UNION}
_SIMPLE_KINDS = {
    "bool": Kind.BOOL,
    "int": Kind.INTEGER,
    "string": Kind.STRING,
    "error": Kind.ERROR,
    "void": Kind.VOID,
}
_RESERVED = frozenset([*dir(values.Header), *keyword.kwlist, "self"])


def attribute(field: str) -> str:
    """The Python attribute that holds a field; other fields have other attributes."""
    if field.startswith("__"):
        return f"{field}___"  # names that end with two underscores are not mangled
    bare = field.rstrip("_")
    return f"{field}_" if any(bare + "_" * more in _RESERVED for more in range(len(field) - len(bare) + 1)) else field


def annotation_map(annotations: list[s.Annotation]) -> dict[str, tuple[Any, ...]]:
    """Annotations by name."""
    return {annotation.name: annotation.args for annotation in annotations}


class TypeFactory:
    """Makes each class and each TypeInfo once."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._classes: dict[t.RecordType, str] = {}
        self._infos: dict[t.Type, TypeInfo] = {}
        self.sources: list[str] = []

    def class_name(self, record: t.RecordType) -> str:
        """The name, in the generated module, of the class of a record."""
        known = self._classes.get(record)
        if known is not None:
            return known
        name = f"{record.name}_{len(self._classes)}" if record.args else f"T_{record.name}"
        self._check_varbit(record)
        for field in record.fields.values():
            self._require_classes(t.strip(field))
        source = record_source(record, name, attribute, self.new_code)
        exec(compile(source, f"<class of {record.keyword} {record.name}>", "exec"), self._namespace)
        self._namespace[name].__name__ = record.name
        self.sources.append(source)
        self._classes[record] = name
        return name

    def _require_classes(self, type_: t.Type) -> None:
        if isinstance(type_, t.RecordType):
            self.class_name(type_)
        elif isinstance(type_, t.StackType):
            self._require_classes(type_.element)

    def _check_varbit(self, record: t.RecordType) -> None:
        if record.keyword != "header":
            return
        for field, type_ in list(record.fields.items())[:-1]:
            if t.has_varbit(type_):
                node = next(item for item in record.decl.fields if item.name == field)
                fail(node, "a varbit that is not the last field of its header is not supported")

    def new_code(self, type_: t.Type) -> str:
        """Python code for the zero value."""
        match t.strip(type_):
            case t.BitType() | t.SimpleType("int"):
                return "0"
            case t.SimpleType("bool"):
                return "False"
            case t.SimpleType("error"):
                return "'NoError'"
            case t.SimpleType("string"):
                return "''"
            case t.VarbitType():
                return "VarBits()"
            case t.EnumType(base=base, members=members):
                return "0" if base is not None else repr(next(iter(members), ""))
            case t.RecordType() as record:
                return f"{self.class_name(record)}()"
            case t.StackType(element, size):
                return f"HeaderStack([{self.new_code(element)} for _ in range({size})])"
            case t.TupleType(items):
                return f"({''.join(self.new_code(item) + ', ' for item in items)})"
        return "None"

    def info(self, type_: t.Type) -> TypeInfo:
        """The TypeInfo of a type."""
        known = self._infos.get(type_)
        if known is None:
            known = self._infos[type_] = self._new_info(type_)
        return known

    def _new_info(self, type_: t.Type) -> TypeInfo:
        new: Callable[[], Any] = eval(f"lambda: {self.new_code(type_)}", self._namespace)
        bare = t.strip(type_)
        name = str(type_)
        match bare:
            case t.BitType(width, signed):
                kind = Kind.INT if signed else Kind.BIT
                return TypeInfo(kind, name, width, new, lambda value: value & bare.mask, bare.wrap)
            case t.EnumType(base=t.BitType() as base, members=members):
                kind = Kind.INT if base.signed else Kind.BIT
                return TypeInfo(
                    kind, name, base.width, new, lambda value: value & base.mask, base.wrap, members=dict(members)
                )
            case t.EnumType(members=members):
                return TypeInfo(Kind.ENUM, name, 0, new, _not_packed, _not_packed, members=dict(members))
            case t.VarbitType(width):
                return TypeInfo(Kind.VARBIT, name, 0, new, lambda value: value.value, _not_packed)
            case t.RecordType() as record:
                return self._record_info(record, new)
            case t.StackType(element, size):
                item = self.info(element)
                return TypeInfo(
                    Kind.STACK,
                    name,
                    t.width_of(bare),
                    new,
                    lambda value: _join([item] * size, list(value)),
                    _not_packed,
                    element=item,
                    size=size,
                )
            case t.TupleType(items, names):
                infos = [self.info(item) for item in items]
                labels = names or tuple(str(index) for index in range(len(items)))
                return TypeInfo(
                    Kind.TUPLE,
                    name,
                    t.width_of(bare),
                    new,
                    lambda value: _join(infos, value),
                    lambda value: _split(infos, value),
                    fields=tuple(zip(labels, infos, strict=True)),
                )
            case t.SimpleType("bool"):
                return TypeInfo(Kind.BOOL, name, 1, new, int, bool)
            case t.SimpleType(simple):
                return TypeInfo(_SIMPLE_KINDS.get(simple, Kind.VOID), name, 0, new, int, int)
        return TypeInfo(Kind.EXTERN, name, 0, new, _not_packed, _not_packed)

    def _record_info(self, record: t.RecordType, new: Callable[[], Any]) -> TypeInfo:
        made = self._namespace[self.class_name(record)]

        def unpack(value: int) -> Any:
            instance = made()
            instance.unpack(value)
            return instance

        return TypeInfo(
            _KINDS[record.keyword],
            record.name,
            t.width_of(record),
            new,
            lambda value: int(value.pack()),
            unpack,
            fields=tuple((name, self.info(field)) for name, field in record.fields.items()),
            annotations=annotation_map(record.decl.annotations),
            field_annotations={
                field.name: annotation_map(field.annotations) for field in record.decl.fields if field.annotations
            },
        )


def _not_packed(_value: Any) -> Any:
    raise TypeError("values of this type have no fixed representation as bits")


def _join(infos: list[TypeInfo], items: Any) -> int:
    result = 0
    for info, item in zip(infos, items, strict=True):
        result = (result << info.width) | info.pack(item)
    return result


def _split(infos: list[TypeInfo], value: int) -> tuple[Any, ...]:
    items = []
    for info in reversed(infos):
        items.append(info.unpack(value & ((1 << info.width) - 1)))
        value >>= info.width
    return tuple(reversed(items))
