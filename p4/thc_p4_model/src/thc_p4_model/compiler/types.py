"""P4 types, resolved."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thc_p4_model.compiler import syntax as s


@dataclass(frozen=True, eq=False)
class Type:
    """Base of all types."""


@dataclass(frozen=True)
class BitType(Type):
    """`bit<width>`, or `int<width>` if signed."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"

    @property
    def mask(self) -> int:
        """All ones."""
        return (1 << self.width) - 1

    def wrap(self, value: int) -> int:
        """The value modulo 2**width, in range."""
        value &= self.mask
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return (-(1 << (self.width - 1)), (1 << (self.width - 1)) - 1) if self.signed else (0, self.mask)


@dataclass(frozen=True)
class VarbitType(Type):
    """`varbit<width>`."""

    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True)
class SimpleType(Type):
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


BOOL = SimpleType("bool")
INTEGER = SimpleType("int")
STRING = SimpleType("string")
ERROR = SimpleType("error")
MATCH_KIND = SimpleType("match_kind")
VOID = SimpleType("void")
DONT_CARE = SimpleType("_")
INVALID_HEADER = SimpleType("{#}")
DEFAULT = SimpleType("...")


@dataclass(frozen=True, eq=False)
class EnumType(Type):
    """An enum; `base` and numbers in `members` if serializable."""

    name: str
    base: BitType | None
    members: Mapping[str, int | str]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class RecordType(Type):
    """A header, struct or header_union (`keyword`)."""

    keyword: str
    name: str
    fields: Mapping[str, Type]
    decl: s.RecordDecl
    args: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StackType(Type):
    """A header stack."""

    element: Type
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True)
class TupleType(Type):
    """A tuple, or the type of a list expression; with names a struct initialiser's."""

    items: tuple[Type, ...]
    names: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.items))}>"


@dataclass(frozen=True, eq=False)
class NewType(Type):
    """`type base name`."""

    name: str
    base: Type

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TypeVar(Type):
    """A type parameter."""

    decl: s.TypeParam

    def __str__(self) -> str:
        return self.decl.name


@dataclass(frozen=True)
class ExternType(Type):
    """An extern with type arguments."""

    decl: s.ExternDecl
    args: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return _with_args(self.decl.name, self.args)


@dataclass(frozen=True)
class BlockTypeRef(Type):
    """The declared type of a parser, control or package, with type arguments."""

    decl: s.BlockType
    args: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return _with_args(self.decl.name, self.args)


@dataclass(frozen=True)
class BlockRef(Type):
    """A parser or control with a body."""

    decl: s.ParserDecl | s.ControlDecl

    def __str__(self) -> str:
        return self.decl.name


@dataclass(frozen=True)
class ActionType(Type):
    """The type of an action's name."""

    decl: s.ActionDecl

    def __str__(self) -> str:
        return f"action {self.decl.name}"


@dataclass(frozen=True)
class TableType(Type):
    """The type of a table's name."""

    decl: s.TableDecl

    def __str__(self) -> str:
        return f"table {self.decl.name}"


@dataclass(frozen=True)
class ApplyResult(Type):
    """The result of `table.apply()`: hit, miss, action_run."""

    decl: s.TableDecl

    def __str__(self) -> str:
        return f"result of {self.decl.name}.apply()"


@dataclass(frozen=True)
class ActionRun(Type):
    """The type of `table.apply().action_run`."""

    decl: s.TableDecl

    def __str__(self) -> str:
        return f"action_run of {self.decl.name}"


@dataclass(frozen=True)
class ValueSetType(Type):
    """A parser value set."""

    element: Type

    def __str__(self) -> str:
        return f"value_set<{self.element}>"


@dataclass(frozen=True)
class TypeName(Type):
    """The type of an expression that names a type."""

    named: Type

    def __str__(self) -> str:
        return f"type {self.named}"


@dataclass(frozen=True)
class CalleeType(Type):
    """The type of a name of functions: overloads."""

    name: str
    decls: tuple[s.Callable, ...] = field(default=())

    def __str__(self) -> str:
        return f"function {self.name}"


def _with_args(name: str, args: tuple[Type, ...]) -> str:
    return f"{name}<{', '.join(map(str, args))}>" if args else name


Bindings = dict[TypeVar, Type]


def substitute(type_: Type, bindings: Mapping[TypeVar, Type]) -> Type:
    """The type with type variables replaced."""
    if not bindings:
        return type_
    match type_:
        case TypeVar():
            bound = bindings.get(type_)
            return type_ if bound is None or bound == type_ else substitute(bound, bindings)
        case TupleType(items, names):
            return TupleType(tuple(substitute(item, bindings) for item in items), names)
        case StackType(element, size):
            return StackType(substitute(element, bindings), size)
        case ExternType(decl, args):
            return ExternType(decl, tuple(substitute(arg, bindings) for arg in args))
        case BlockTypeRef(decl, args):
            return BlockTypeRef(decl, tuple(substitute(arg, bindings) for arg in args))
    return type_


def strip(type_: Type) -> Type:
    """The type without `type` names around it."""
    while isinstance(type_, NewType):
        type_ = type_.base
    return type_


def is_object(type_: Type) -> bool:
    """Whether values are mutable objects passed by reference."""
    return isinstance(type_, (RecordType, StackType))


def is_header(type_: Type) -> bool:
    """Whether this is a header type."""
    return isinstance(type_, RecordType) and type_.keyword == "header"


def is_numeric(type_: Type) -> bool:
    """Whether arithmetic works on it."""
    return isinstance(type_, BitType) or type_ is INTEGER


def width_of(type_: Type) -> int:
    """Bits of a value; varbits count with their maximum; 0 for types without bits."""
    match strip(type_):
        case BitType(width) | VarbitType(width):
            return width
        case EnumType(base=BitType(width)):
            return width
        case RecordType(keyword="header_union", fields=fields):
            return max((width_of(field) for field in fields.values()), default=0)
        case RecordType(fields=fields):
            return sum(width_of(field) for field in fields.values())
        case StackType(element, size):
            return size * width_of(element)
        case TupleType(items):
            return sum(width_of(item) for item in items)
        case SimpleType("bool"):
            return 1
    return 0


def has_varbit(type_: Type) -> bool:
    """Whether the size of values varies."""
    match type_:
        case VarbitType():
            return True
        case RecordType(fields=fields):
            return any(has_varbit(field) for field in fields.values())
        case StackType(element):
            return has_varbit(element)
    return False
