"""The Python source of the class of a header, struct or header union."""

from collections.abc import Callable

from thc_p4_model.compiler import types as t

_STRUCT_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}


def record_source(
    record: t.RecordType, name: str, attribute: Callable[[str], str], new_code: Callable[[t.Type], str]
) -> str:
    """A class definition. It relies on thc_p4_model.values and on the classes of nested records."""
    return _RecordWriter(record, name, attribute, new_code).source()


class _RecordWriter:
    def __init__(
        self, record: t.RecordType, name: str, attribute: Callable[[str], str], new_code: Callable[[t.Type], str]
    ) -> None:
        self._record = record
        self._name = name
        self._new_code = new_code
        self._fields = [(attribute(field), t.strip(type_)) for field, type_ in record.fields.items()]
        self._is_header = record.keyword == "header"
        self._varbit = next((field for field, type_ in self._fields if isinstance(type_, t.VarbitType)), None)
        self._fixed = [(field, type_) for field, type_ in self._fields if field != self._varbit]
        self._bits = sum(t.width_of(type_) for _field, type_ in self._fixed)

    def source(self) -> str:
        base = {"header": "Header", "struct": "Struct", "header_union": "HeaderUnion"}[self._record.keyword]
        names = [field for field, _type in self._fields]
        quoted = "".join(f"{name!r}, " for name in names)
        lines = [
            f"class {self._name}({base}):",
            f"    __slots__ = ({quoted})",
            f"    FIELDS = ({quoted})",
            f"    BITS = {self._bits}",
            *([f"    VARBIT = {self._varbit!r}"] if self._varbit else []),
            *_method("__init__", "self", [*self._valid("False"), *self._each("self.{0} = {new}")]),
            *_method("reset", "self", self._reset()),
            *_method("assign", "self, other", self._assign()),
            *_method("copy", "self", self._copy()),
            *_method("fill", ", ".join(["self", *names]), [*self._valid("True"), *self._fill()]),
        ]
        if self._is_header:
            lines += _method("set_invalid", "self", self._reset())
        if all(_packable(type_) for _field, type_ in self._fixed) and self._record.keyword != "header_union":
            lines += _method("pack", "self", self._pack())
            lines += _method("unpack", "self, value", self._unpack())
            lines += self._varbit_methods()
            lines += self._byte_methods()
        return "\n".join(lines) + "\n"

    def _valid(self, value: str) -> list[str]:
        return [f"self.valid = {value}"] if self._is_header else []

    def _each(self, template: str) -> list[str]:
        return [template.format(field, new=self._new_code(type_)) for field, type_ in self._fields]

    def _reset(self) -> list[str]:
        lines = self._valid("False")
        zeros: dict[str, list[str]] = {}
        for field, type_ in self._fields:
            if isinstance(type_, t.RecordType):
                lines.append(f"self.{field}.reset()")
            elif isinstance(type_, t.StackType):
                lines += [f"for item in self.{field}.items: item.reset()", f"self.{field}.next_index = 0"]
            else:
                zeros.setdefault(self._new_code(type_), []).append(f"self.{field}")
        return lines + [f"{' = '.join(fields)} = {zero}" for zero, fields in zeros.items()]

    def _assign(self) -> list[str]:
        lines = ["self.valid = other.valid"] if self._is_header else []
        for field, type_ in self._fields:
            if t.is_object(type_):
                lines.append(f"self.{field}.assign(other.{field})")
            else:
                lines.append(f"self.{field} = other.{field}")
        return lines

    def _copy(self) -> list[str]:
        lines = [f"other = {self._name}.__new__({self._name})"]
        if self._is_header:
            lines.append("other.valid = self.valid")
        for field, type_ in self._fields:
            copied = f"self.{field}.copy()" if t.is_object(type_) else f"self.{field}"
            lines.append(f"other.{field} = {copied}")
        return [*lines, "return other"]

    def _fill(self) -> list[str]:
        return [
            f"self.{field}.assign({field})" if t.is_object(type_) else f"self.{field} = {field}"
            for field, type_ in self._fields
        ]

    def _pack(self) -> list[str]:
        parts: list[str] = []
        below = self._bits
        for field, type_ in self._fixed:
            below -= t.width_of(type_)
            code = _pack_code(f"self.{field}", type_)
            parts.append(f"({code} << {below})" if below else code)
        fixed = " | ".join(parts) or "0"
        if self._varbit:
            return [f"varbit = self.{self._varbit}", f"return (({fixed}) << varbit.width) | varbit.value"]
        return [f"return {fixed}"]

    def _unpack(self) -> list[str]:
        lines = self._valid("True")
        below = self._bits
        for index, (field, type_) in enumerate(self._fixed):
            width = t.width_of(type_)
            below -= width
            part = f"(value >> {below})" if below else "value"
            if index or not self._is_header:
                part = f"({part} & {(1 << width) - 1:#x})"
            lines.append(_unpack_code(f"self.{field}", part, type_))
        return lines

    def _varbit_methods(self) -> list[str]:
        if self._varbit is None:
            return []
        maximum = t.width_of(self._record) - self._bits
        load = [
            f"if width > {maximum}: raise ParserError('HeaderTooShort')",
            "self.unpack(fixed)",
            f"self.{self._varbit} = VarBits(width, value)",
        ]
        return [
            *_method("load_varbit", "self, fixed, width, value", load),
            *_method("packed_bits", "self", [f"return {self._bits} + self.{self._varbit}.width"]),
        ]

    def _byte_methods(self) -> list[str]:
        """`load` and `dump` by the struct module where every field is a machine word."""
        types = [type_ for _field, type_ in self._fixed]
        plain = all(isinstance(type_, t.BitType) and type_.width in _STRUCT_FORMATS for type_ in types)
        if not plain or not types or self._varbit or not self._is_header:
            return []
        codes = ""
        for type_ in types:
            assert isinstance(type_, t.BitType)
            code = _STRUCT_FORMATS[type_.width]
            codes += code.lower() if type_.signed else code
        targets = ", ".join(f"self.{field}" for field, _type in self._fixed)
        comma = "," if len(types) == 1 else ""
        load = [f"{targets}{comma} = unpack_from({'>' + codes!r}, data, offset)", "self.valid = True"]
        return [
            *_method("load", "self, data, offset", load),
            *_method("dump", "self", [f"return pack_bytes({'>' + codes!r}, {targets})"]),
        ]


def _method(name: str, params: str, body: list[str]) -> list[str]:
    return [f"    def {name}({params}):", *(f"        {line}" for line in body or ["pass"])]


def _packable(type_: t.Type) -> bool:
    match t.strip(type_):
        case t.BitType() | t.SimpleType("bool"):
            return True
        case t.EnumType(base=base):
            return base is not None
        case t.RecordType(keyword="header" | "struct", fields=fields):
            return all(_packable(field) for field in fields.values())
        case t.TupleType() | t.StackType():
            return False
    return False


def _pack_code(code: str, type_: t.Type) -> str:
    match type_:
        case t.BitType(signed=True, mask=mask) | t.EnumType(base=t.BitType(signed=True, mask=mask)):
            return f"({code} & {mask:#x})"
        case t.SimpleType("bool"):
            return f"int({code})"
        case t.RecordType():
            return f"{code}.pack()"
    return code


def _unpack_code(target: str, part: str, type_: t.Type) -> str:
    number = type_.base if isinstance(type_, t.EnumType) else type_
    match number:
        case t.BitType(width, True):
            half = 1 << (width - 1)
            return f"{target} = ({part} ^ {half:#x}) - {half:#x}"
        case t.SimpleType("bool"):
            return f"{target} = {part} != 0"
        case t.RecordType():
            return f"{target}.unpack({part})"
    return f"{target} = {part}"
