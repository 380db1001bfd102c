"""Operators and casts to Python expressions."""

from collections.abc import Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.codegen_base import SIMPLE, GeneratorBase, is_literal

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


class OperatorGenerator(GeneratorBase):
    """Adds operators. Results are brought into range only where they can leave it."""

    def value(self, expr: s.Expr) -> str:
        """Python code for the value of a checked expression."""
        raise NotImplementedError

    def values(self, exprs: Sequence[s.Expr]) -> list[str]:
        """Codes for several values, evaluated in order."""
        raise NotImplementedError

    def number(self, expr: s.Expr) -> tuple[str, bool]:
        """Code, and whether its value is in the range of the type or only congruent to it modulo 2**width."""
        raise NotImplementedError

    def constant_code(self, expr: s.Expr) -> str | None:
        """The code of a scalar constant; None if the expression is none."""
        raise NotImplementedError

    def branch(self, condition: str, result: str, yes: tuple[list[str], str], no: tuple[list[str], str] | None) -> None:
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

    def unary(self, expr: s.Unary) -> tuple[str, bool]:
        """As `number`, of a unary operation."""
        if expr.op == "!":
            return f"(not {self.value(expr.operand)})", True
        code, exact = self.number(expr.operand)
        type_ = number_type(self.type_of(expr))
        if expr.op == "-":
            return f"(-{code})", False
        if expr.op == "~":
            if isinstance(type_, t.BitType) and not type_.signed and exact:
                return f"({code} ^ {type_.mask:#x})", True
            return f"(~{code})", exact
        return code, exact

    def binary(self, expr: s.Binary) -> tuple[str, bool]:
        """As `number`, of a binary operation."""
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
        self.branch(condition, result, (lines, right), None)
        return result

    def _modular(self, expr: s.Binary) -> tuple[str, bool]:
        """Operations whose result modulo 2**width depends only on the operands modulo 2**width."""
        with self.captured() as left_lines:
            left, left_exact = self.number(expr.left)
        self.lines.extend(left_lines)
        with self.captured() as right_lines:
            right, right_exact = self.number(expr.right)
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

    def cast(self, expr: s.Cast) -> tuple[str, bool]:
        """As `number`, of a cast."""
        source, target = number_type(self.type_of(expr.operand)), number_type(self.type_of(expr))
        if target is t.BOOL and source is not t.BOOL:
            return f"({self.value(expr.operand)} != 0)", True
        if source is t.BOOL and isinstance(target, t.BitType):
            return f"(1 if {self.value(expr.operand)} else 0)", True
        constant = self.constant_code(expr)
        if constant is not None:
            return constant, True
        if not (isinstance(source, t.BitType) and isinstance(target, t.BitType)):
            return self.number(expr.operand) if source == target else (self.value(expr.operand), True)
        if target.width <= source.width:
            code, exact = self.number(expr.operand)
            return code, exact and source == target
        # Widening keeps the value; a signed target keeps the sign.
        return self.value(expr.operand), source.signed == target.signed or not source.signed
