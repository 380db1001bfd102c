"""The meaning of a call in the source, as the checker finds it."""

import enum
from dataclasses import dataclass

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.types import Type


class CallKind(enum.Enum):
    """The called thing."""

    BUILT_IN = enum.auto()  # isValid, setValid, push_front, minSizeInBits, ...
    FUNCTION = enum.auto()
    EXTERN_FUNCTION = enum.auto()
    EXTERN_METHOD = enum.auto()
    ACTION = enum.auto()
    TABLE = enum.auto()
    BLOCK = enum.auto()  # a parser's or control's apply
    CONSTRUCTOR = enum.auto()


@dataclass(eq=False)
class BoundArgument:
    """One parameter with its argument: `value` None for `_` and for absent optional parameters (`given` False)."""

    param: s.Param
    type: Type
    value: s.Expr | None
    given: bool = True

    @property
    def is_written(self) -> bool:
        """Whether the callee writes to the argument."""
        return self.param.direction in ("out", "inout")


@dataclass(eq=False)
class CallTarget:
    """A resolved call."""

    kind: CallKind
    name: str
    decl: s.Decl | None
    base: s.Expr | None
    """The object before the dot; None for plain functions and for `Type.apply()`."""
    type_args: tuple[Type, ...]
    args: list[BoundArgument]
    result: Type
    constructed: Type | None = None
    """The type that a constructor makes, and the type T of `T.apply()` and of `T.minSizeInBits()`."""
