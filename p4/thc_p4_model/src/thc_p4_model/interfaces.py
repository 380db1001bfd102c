"""Interfaces between the compiler of the P4 model and its runtime (tables, externs, packets, architectures).

The compiler turns P4_16 source into a `Program`. `Program.instantiate(runtime)` asks the runtime for one object per
table and extern instance and returns a `ProgramInstance`, whose blocks are Python callables.

Values while a program runs
---------------------------
- `bit<N>`, `int<N>`, serializable enums: `int`, always in range. `bool`: `bool`. Enum, error: the member's name, a
  `str`.
- header, struct, stack, union: objects of the classes in `thc_p4_model.values`, passed by reference. Tuples and list
  expressions: Python tuples. `varbit`: `values.VarBits`.

Calling convention, of extern methods and functions, abstract methods and blocks alike
---------------------------------------------------------------------------------------
- Arguments are positional, in parameter order. `in`, `inout` and direction-less arguments are passed; `out` arguments
  are passed only if they are objects (headers, structs, stacks, unions), which the callee changes in place.
- The result is: the return value of a non-void callee, then every `out` and `inout` parameter that is a scalar, in
  parameter order. No such value: None. One: that value. More: a tuple.
  `bit<8> execute(in bit<16> index)`: `execute(index) -> int`. `void read(out bit<8> result, in bit<32> index)`:
  `read(index) -> int`. `void apply(inout bit<32> value, out bit<8> rv)`: `apply(value) -> (value, rv)`.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from thc_p4_model.compiler import syntax


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a source file."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class P4Error(Exception):
    """The program is wrong, or uses an unsupported feature. The message names the place."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.path = location.path
        self.line = location.line
        self.message = message


class ParserError(Exception):
    """A parser stopped; `name` is the member of `error`, `NoError` after a plain `transition reject`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Kind(enum.Enum):
    """Sort of type that a `TypeInfo` describes."""

    BIT = "bit"
    INT = "int"
    BOOL = "bool"
    VARBIT = "varbit"
    ENUM = "enum"  # members are strings; a serializable enum is a BIT or INT with members
    ERROR = "error"
    STRING = "string"
    INTEGER = "integer"  # arbitrary precision: constants only
    HEADER = "header"
    STRUCT = "struct"
    UNION = "union"
    STACK = "stack"
    TUPLE = "tuple"
    EXTERN = "extern"
    VOID = "void"


@dataclass(frozen=True, eq=False)
class TypeInfo:
    """A type as the runtime sees it."""

    kind: Kind
    name: str
    """As written in P4: `bit<32>`, `ethernet_h`."""
    width: int
    """Bits of `pack`'s result; 0 for types without a fixed size."""
    new: Callable[[], Any]
    """A zero value: 0, False, first enum member, an invalid header, a struct of such."""
    pack: Callable[[Any], int]
    """A value as one integer, first field in the most significant bits; for hashes, checksums and digests."""
    unpack: Callable[[int], Any]
    """The inverse of `pack`; headers come out valid."""
    fields: tuple[tuple[str, "TypeInfo"], ...] = ()
    """For headers, structs and unions; for tuples and list expressions with names "0", "1", ..."""
    element: "TypeInfo | None" = None
    """For header stacks."""
    size: int = 0
    """For header stacks: elements."""
    members: Mapping[str, Any] = field(default_factory=dict)
    """For enums: name to value."""
    annotations: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    field_annotations: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    """For headers, structs and unions: per field, if it has any."""


@dataclass(frozen=True)
class Param:
    """A parameter of a block, method or function."""

    name: str
    direction: str
    """`in`, `out`, `inout` or empty."""
    type: TypeInfo


@dataclass(frozen=True)
class ExternInfo:
    """An extern instance the runtime must construct."""

    name: str
    """Control-plane name, for example `Ingress.blocks.sum_0`."""
    extern: str
    """Type name, for example `Register`."""
    type_args: tuple[TypeInfo, ...]
    args: tuple[Any, ...]
    """Constructor arguments: int, bool, str (enum members too), other extern instances; absent optional ones: None."""
    annotations: Mapping[str, tuple[Any, ...]]
    location: Location
    abstract: Mapping[str, Callable[..., Any]]
    """Abstract methods the program implements, such as `apply` of a RegisterAction."""


@dataclass(frozen=True)
class CallInfo:
    """One call, in the source, of an extern function or method."""

    name: str
    type_args: tuple[TypeInfo, ...]
    params: tuple[Param, ...]
    """As declared, with the types of this call, and without parameters that have no argument (optional ones)."""
    result: TypeInfo
    constants: tuple[Any, ...]
    """Per parameter: the argument where it is known at compile time, otherwise None."""
    location: Location


@dataclass(frozen=True)
class ActionInfo:
    """An action of a table. The control plane gives `params`."""

    name: str
    """Control-plane name, for example `Ingress.blocks.set_values`."""
    params: tuple[Param, ...]
    annotations: Mapping[str, tuple[Any, ...]]
    table_only: bool = False
    default_only: bool = False


@dataclass(frozen=True)
class KeyInfo:
    """One key of a table."""

    name: str
    match_kind: str
    width: int
    type: TypeInfo


@dataclass(frozen=True)
class ActionCall:
    """An action with its arguments; `index` counts in `TableInfo.actions`."""

    index: int
    args: tuple[Any, ...]


@dataclass(frozen=True)
class EntryInfo:
    """A constant entry.

    One item of `match` per key: exact: the value; lpm: (value, prefix length); ternary and optional: (value, mask),
    mask 0 for `_`; range: (low, high), inclusive. Other match kinds: (value, mask).
    """

    match: tuple[Any, ...]
    action: ActionCall
    priority: int
    """The smallest wins; see compiler/priorities.py."""
    location: Location
    const: bool = False
    """Whether the control plane may neither change nor remove it."""


@dataclass(frozen=True)
class TableInfo:
    """A table the runtime must construct."""

    name: str
    keys: tuple[KeyInfo, ...]
    actions: tuple[ActionInfo, ...]
    default_action: ActionCall
    """NoAction without arguments unless the program says otherwise; then it is appended to `actions`."""
    const_default_action: bool
    entries: tuple[EntryInfo, ...]
    const_entries: bool
    size: int
    """Entries; 0 where the program does not say."""
    properties: Mapping[str, Any]
    """Other properties (`implementation`, `counters`, `registers`, `idle_timeout`, ...), evaluated."""
    annotations: Mapping[str, tuple[Any, ...]]
    location: Location


class Table(Protocol):
    """A table as generated code uses it. The keys are positional, in the order of `TableInfo.keys`."""

    def match(self, *keys: Any) -> tuple[int, tuple[Any, ...], bool]:
        """Index of the action to run, its arguments, and whether an entry was hit."""


class PacketIn(Protocol):
    """`packet_in` as generated code uses it; everything raises ParserError."""

    def extract(self, header: Any, varbit_bits: int = 0) -> None:
        """Fill the header from the packet and advance."""

    def lookahead_bits(self, width: int) -> int:
        """The next bits, without advancing."""

    def advance(self, bits: int) -> None:
        """Skip bits."""

    def length(self) -> int:
        """Bytes of the packet."""


class PacketOut(Protocol):
    """`packet_out` as generated code uses it."""

    def emit(self, value: Any) -> None:
        """Append the valid headers of a header, struct, stack or union, in order."""


class Runtime(Protocol):
    """Makes the objects a program instance uses; one Runtime per pipe or switch, as the architecture likes.

    An extern object may have, for a method `m`, a method `bind_m(call: CallInfo)` that is called once per call in the
    source and returns the function to use there; otherwise `m` itself is called. Overloads of a method share its name.
    """

    def new_extern(self, info: ExternInfo) -> Any:
        """Construct an extern instance, or raise P4Error at `info.location`."""

    def new_table(self, info: TableInfo) -> Table:
        """Construct a table, or raise P4Error at `info.location`."""

    def bind_function(self, call: CallInfo) -> Callable[..., Any]:
        """The function behind one call of an extern function, or raise P4Error at `call.location`."""


@dataclass(frozen=True)
class Block:
    """A parser or control of an instantiated program. `apply` follows the calling convention above."""

    kind: str
    """`parser` or `control`."""
    name: str
    """The name of its P4 declaration."""
    params: tuple[Param, ...]
    apply: Callable[..., Any]
    annotations: Mapping[str, tuple[Any, ...]]
    location: Location


@dataclass(frozen=True)
class Package:
    """An instantiated package: `main`, or one nested in it."""

    type_name: str
    name: str
    args: Mapping[str, Any]
    """Per parameter name: Block, Package, extern instance or constant; optional parameters may be missing."""
    type_args: tuple[TypeInfo, ...]
    location: Location


@dataclass(frozen=True)
class ProgramInstance:
    """Tables and externs with their state, and the blocks that use them."""

    main: Package
    tables: Mapping[str, Table]
    """By control-plane name, without architecture prefixes such as `pipe.`."""
    table_infos: Mapping[str, TableInfo]
    externs: Mapping[str, Any]
    extern_infos: Mapping[str, ExternInfo]


class Program(Protocol):
    """A compiled program: `thc_p4_model.compile_program` makes one."""

    @property
    def source(self) -> str:
        """The generated Python, for inspection."""

    @property
    def types(self) -> Mapping[str, TypeInfo]:
        """Header, struct, union and enum types by name."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """Top-level constants by name."""

    @property
    def errors(self) -> tuple[str, ...]:
        """Members of `error` in order of declaration."""

    @property
    def tree(self) -> "syntax.Program":
        """The checked syntax tree, for rules of targets."""

    def instantiate(self, runtime: Runtime) -> ProgramInstance:
        """Independent state and blocks; may be called any number of times."""
