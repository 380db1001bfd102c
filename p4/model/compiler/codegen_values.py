"""Expressions to Python expressions.

An expression that needs statements (calls with out parameters, table applications) emits them first. Operands
evaluated before such an expression are saved in variables, so that the order of evaluation is P4's.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4.model.compiler import syntax as s
from p4.model.compiler import types as t
from p4.model.compiler.codegen_base import SIMPLE, Constant, GeneratorBase, Variable, is_literal, literal
from p4.model.compiler.codegen_types import attribute
from p4.model.compiler.constants import NotConstant, evaluate

_MODULAR = ("+", "-", "*")
_DIRECT = {"==": "==", "!=": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">="}


def number_type(type_: t.Type) -> t.Type:
    """The type without names and enum around it."""
    bare = t.strip(type_)
    return bare.base if isinstance(bare, t.EnumType) and bare.base is not None else bare


def wrap(code: str, type_: t.Type) -> str:
    """Code for the number brought into the range of its type."""
    bare = number_type(type_)
    if not isinstance(bare, t.BitType):
        return code
    if bare.signed:
        half = 1 << (bare.width - 1)
        return f"((({code} + {half:#x}) & {bare.mask:#x}) - {half:#x})"
    return f"({code} & {bare.mask:#x})"


class ValueGenerator(GeneratorBase):
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
        code, exact = self._number(expr)
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

    def _number(self, expr: s.Expr) -> tuple[str, bool]:
        """Code, and whether its value is in the range of the type or only congruent to it modulo 2**width."""
        if isinstance(expr, (s.Binary, s.Unary)):
            constant = self.constant_code(expr)
            if constant is not None:
                return constant, True
            return self._binary(expr) if isinstance(expr, s.Binary) else self._unary(expr)
        if isinstance(expr, s.Cast):
            return self._cast(expr)
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
        self.fail(expr, "this expression is not supported here")

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
        self.fail(expr, f"{expr.name} cannot be used as a value here")

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
        self._branch(condition, result, (yes_lines, yes), (no_lines, no))
        return result

    def _branch(
        self, condition: str, result: str, yes: tuple[list[str], str], no: tuple[list[str], str] | None
    ) -> None:
        """Emit `if condition: result = yes else: result = no`, with the statements either needs."""
        self.emit(f"if {condition}:")
        self._branch_arm(result, yes)
        if no is not None:
            self.emit("else:")
            self._branch_arm(result, no)

    def _branch_arm(self, result: str, arm: tuple[list[str], str]) -> None:
        lines, code = arm
        self.lines.extend("    " + line for line in lines)
        with self.indented():
            self.emit(f"{result} = {code}")

    # Operators

    def _unary(self, expr: s.Unary) -> tuple[str, bool]:
        if expr.op == "!":
            return f"(not {self.value(expr.operand)})", True
        code, exact = self._number(expr.operand)
        type_ = number_type(self.type_of(expr))
        if expr.op == "-":
            return f"(-{code})", False
        if expr.op == "~":
            if isinstance(type_, t.BitType) and not type_.signed and exact:
                return f"({code} ^ {type_.mask:#x})", True
            return f"(~{code})", exact
        return code, exact

    def _binary(self, expr: s.Binary) -> tuple[str, bool]:
        op = expr.op
        if op in ("&&", "||"):
            return self._logical(expr), True
        if op in ("<<", ">>"):
            return self._shift(expr)
        if op in _DIRECT:
            left, right = self.values([expr.left, expr.right])
            return f"({left} {_DIRECT[op]} {right})", True
        if op in ("+", "-", "*", "&", "|", "^"):
            return self._modular(expr)
        left, right = self.values([expr.left, expr.right])
        if op == "++":
            return self._concatenation(expr, left, right), True
        if op in ("|+|", "|-|"):
            return self._saturating(expr, left, right), True
        if not is_literal(right) or right == "0":
            self.fail(expr, f"{op} by anything but a constant other than zero is not supported")
        return f"({left} {'//' if op == '/' else '%'} {right})", True

    def _logical(self, expr: s.Binary) -> str:
        left = self.value(expr.left)
        with self.captured() as lines:
            right = self.value(expr.right)
        if not lines:
            return f"({left} {'and' if expr.op == '&&' else 'or'} {right})"
        result = self.temp(left, "condition")
        condition = result if expr.op == "&&" else f"not {result}"
        self._branch(condition, result, (lines, right), None)
        return result

    def _modular(self, expr: s.Binary) -> tuple[str, bool]:
        """Operations whose result modulo 2**width depends only on the operands modulo 2**width."""
        with self.captured() as left_lines:
            left, left_exact = self._number(expr.left)
        self.lines.extend(left_lines)
        with self.captured() as right_lines:
            right, right_exact = self._number(expr.right)
        if right_lines:
            left = self.stable(left)
            self.lines.extend(right_lines)
        type_ = number_type(self.type_of(expr))
        signed = isinstance(type_, t.BitType) and type_.signed
        if type_ is t.INTEGER:
            exact = True
        elif expr.op in _MODULAR:
            exact = False
        elif expr.op == "&" and not signed:
            exact = left_exact or right_exact
        else:
            exact = left_exact and right_exact
        return f"({left} {expr.op} {right})", exact

    def _shift(self, expr: s.Binary) -> tuple[str, bool]:
        left, right = self.values([expr.left, expr.right])
        if expr.op == ">>":
            return f"({left} >> {right})", True
        type_ = number_type(self.type_of(expr.left))
        if not isinstance(type_, t.BitType) or (is_literal(right) and int(right, 0) < type_.width):
            return f"({left} << {right})", False
        if is_literal(right):
            return "0", True
        amount = right if SIMPLE.match(right) else self.temp(right, "amount")
        return f"({left} << {amount} if {amount} < {type_.width} else 0)", False

    def _concatenation(self, expr: s.Binary, left: str, right: str) -> str:
        left_type, right_type = number_type(self.type_of(expr.left)), number_type(self.type_of(expr.right))
        assert isinstance(left_type, t.BitType)
        assert isinstance(right_type, t.BitType)
        low = f"({right} & {right_type.mask:#x})" if right_type.signed else right
        return f"(({left} << {right_type.width}) | {low})"

    def _saturating(self, expr: s.Binary, left: str, right: str) -> str:
        type_ = number_type(self.type_of(expr))
        assert isinstance(type_, t.BitType)
        low, high = type_.range
        total = f"{left} {expr.op[1]} {right}"
        if type_.signed:
            return f"min(max({total}, {low}), {high})"
        return f"min({total}, {high})" if expr.op == "|+|" else f"max({total}, 0)"

    def _cast(self, expr: s.Cast) -> tuple[str, bool]:
        source, target = number_type(self.type_of(expr.operand)), number_type(self.type_of(expr))
        if target is t.BOOL and source is not t.BOOL:
            return f"({self.value(expr.operand)} != 0)", True
        if source is t.BOOL and isinstance(target, t.BitType):
            return f"(1 if {self.value(expr.operand)} else 0)", True
        constant = self.constant_code(expr)
        if constant is not None:
            return constant, True
        if not (isinstance(source, t.BitType) and isinstance(target, t.BitType)):
            return self._number(expr.operand) if source == target else (self.value(expr.operand), True)
        if target.width <= source.width:
            code, exact = self._number(expr.operand)
            return code, exact and source == target
        # Widening keeps the value; a signed target keeps the sign.
        return self.value(expr.operand), source.signed == target.signed or not source.signed
