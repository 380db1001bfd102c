"""Expressions to Python expressions.

An expression that needs statements (calls with out parameters, table applications) emits them first. Operands
evaluated before such an expression are saved in variables, so that the order of evaluation is P4's.
"""

from collections.abc import Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.codegen_base import Constant, Variable, literal
from thc_p4_model.compiler.codegen_operators import OperatorGenerator, number_type, wrap
from thc_p4_model.compiler.codegen_types import attribute
from thc_p4_model.compiler.constants import NotConstant, evaluate
from thc_p4_model.interfaces import P4Error

MAX_PARENTHESES = 60
"""In one Python expression; Python itself gives up at 200."""


class ValueGenerator(OperatorGenerator):
    """Adds expressions."""

    def __init__(self) -> None:
        super().__init__()
        self.current: dict[s.Assign, str] = {}
        """Code for what the targets of assigning operators hold."""

    def call_value(self, call: s.Call) -> str:
        """Emit a call and give code for its result."""
        raise NotImplementedError

    def value(self, expr: s.Expr) -> str:
        """Python code for the value of a checked expression."""
        code, exact = self.number(expr)
        return code if exact else wrap(code, self.type_of(expr))

    def values(self, exprs: Sequence[s.Expr]) -> list[str]:
        """Codes for several values, evaluated in order."""
        codes: list[str] = []
        for expr in exprs:
            with self.captured() as lines:
                code = self.value(expr)
            if lines:
                codes = [self._saved(earlier, code) for earlier, code in zip(exprs, codes, strict=False)]
                self.lines.extend(lines)
            codes.append(code)
        return codes

    def _saved(self, expr: s.Expr, code: str) -> str:
        """Code for a value already evaluated, safe from the statements that follow."""
        if t.is_object(self.type_of(expr)) and self.is_place(expr):
            code += ".copy()"
        return self.stable(code)

    def fresh(self, expr: s.Expr) -> str:
        """Code for a value that shares nothing with variables: objects are copied unless they are new."""
        code = self.value(expr)
        return f"{code}.copy()" if t.is_object(self.type_of(expr)) and self.is_place(expr) else code

    def is_place(self, expr: s.Expr) -> bool:
        """Whether the expression names something that exists, instead of making a new value."""
        return isinstance(expr, (s.Name, s.Member, s.Index, s.Ternary))

    def constant_code(self, expr: s.Expr) -> str | None:
        """The code of a scalar constant; None if the expression is none."""
        if t.is_object(self.type_of(expr)) or isinstance(expr, (s.Call, s.ListExpr, s.StructExpr)):
            return None
        try:
            value = evaluate(expr, self.constants())
        except NotConstant:
            return None
        return literal(value) if isinstance(value, (bool, int, str)) else None

    def number(self, expr: s.Expr) -> tuple[str, bool]:
        """Code, and whether its value is in the range of the type or only congruent to it modulo 2**width."""
        if isinstance(expr, (s.Binary, s.Unary)):
            constant = self.constant_code(expr)
            if constant is not None:
                return constant, True
            code, exact = self.binary(expr) if isinstance(expr, s.Binary) else self.unary(expr)
            return (self.temp(code) if code.count("(") > MAX_PARENTHESES else code), exact
        if isinstance(expr, s.Cast):
            return self.cast(expr)
        return self._simple(expr), True

    def _simple(self, expr: s.Expr) -> str:
        match expr:
            case s.IntLit() | s.BoolLit() | s.StringLit():
                return literal(evaluate(expr))
            case s.Name():
                return self._name(expr)
            case s.Member():
                return self._member(expr)
            case s.Index():
                return self._index(expr)
            case s.Slice():
                high, low = expr.bounds
                base = self.value(expr.base)
                shifted = f"({base} >> {low})" if low else base
                base_type = number_type(self.type_of(expr.base))
                if isinstance(base_type, t.BitType) and high == base_type.width - 1 and not base_type.signed:
                    return shifted
                return f"({shifted} & {(1 << (high - low + 1)) - 1:#x})"
            case s.Ternary():
                return self._ternary(expr)
            case s.Call():
                return self.call_value(expr)
            case s.Current():
                return self.current[expr.assignment]
            case s.ListExpr():
                return self._aggregate(expr, expr.items)
            case s.StructExpr():
                return self._aggregate(expr, [value for _name, value in expr.fields])
            case s.InvalidHeader() | s.DefaultValue():
                return self.types.new_code(self.type_of(expr))
        raise P4Error(expr.location, "this expression is not supported here")

    def _name(self, expr: s.Name) -> str:
        binding = self.bindings.get(expr.decl)
        match binding:
            case Variable(code):
                return code
            case Constant(value) if isinstance(value, (bool, int, str)):
                return literal(value)
        if isinstance(expr.decl, s.ConstDecl):
            constant = self.constant_code(expr)
            return constant if constant is not None else self.value(expr.decl.value)
        if isinstance(binding, Constant):
            return repr(binding.value)
        raise P4Error(expr.location, f"{expr.name} cannot be used as a value here")

    def _member(self, expr: s.Member) -> str:
        if isinstance(expr.base, s.TypeExpr):
            return literal(evaluate(expr))
        base_type = self.type_of(expr.base)
        if isinstance(base_type, t.StackType):
            return self._stack_member(expr, base_type)
        if isinstance(base_type, t.ApplyResult):
            return self.applied(expr)
        return f"{self.value(expr.base)}.{attribute(expr.name)}"

    def applied(self, expr: s.Member) -> str:
        """Code for `table.apply().hit` and its like."""
        raise NotImplementedError

    def _stack_member(self, expr: s.Member, stack: t.StackType) -> str:
        base = self.value(expr.base)
        match expr.name:
            case "size":
                return str(stack.size)
            case "lastIndex":
                return f"(({base}.next_index - 1) & 0xffffffff)"
            case name:
                return f"{base}.{name}()"

    def _index(self, expr: s.Index) -> str:
        constant = self.constant_code(expr.index)
        if isinstance(self.type_of(expr.base), t.TupleType):
            return f"{self.value(expr.base)}[{constant}]"
        if constant is not None:
            return f"{self.value(expr.base)}.items[{constant}]"
        base, index = self.values([expr.base, expr.index])
        return f"{base}.at({index})"

    def _aggregate(self, expr: s.Expr, items: Sequence[s.Expr]) -> str:
        type_ = self.type_of(expr)
        codes = self.values(items)
        if isinstance(type_, t.RecordType):
            made = self.temp(self.types.new_code(type_), "made")
            self.emit(f"{made}.fill({', '.join(codes)})")
            return made
        copied = [
            f"{code}.copy()" if t.is_object(self.type_of(item)) and self.is_place(item) else code
            for code, item in zip(codes, items, strict=True)
        ]
        if isinstance(type_, t.StackType):
            return f"HeaderStack([{', '.join(copied)}])"
        return f"({''.join(code + ', ' for code in copied)})"

    def _ternary(self, expr: s.Ternary) -> str:
        condition = self.value(expr.condition)
        with self.captured() as yes_lines:
            yes = self.value(expr.yes)
        with self.captured() as no_lines:
            no = self.value(expr.no)
        if not yes_lines and not no_lines:
            return f"({yes} if {condition} else {no})"
        result = self.name("chosen")
        self.branch(condition, result, (yes_lines, yes), (no_lines, no))
        return result
