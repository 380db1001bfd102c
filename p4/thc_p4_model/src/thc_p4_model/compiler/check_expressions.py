"""Types of expressions."""

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_types import TypeResolver, fail
from thc_p4_model.compiler.coercion import convert, explicit_cast_allowed, literal
from thc_p4_model.compiler.constants import try_evaluate
from thc_p4_model.compiler.unsupported import refusal

_COMPARISONS = ("<", ">", "<=", ">=")
_UNSIZED = (t.INTEGER,)
_INCOMPARABLE = (
    t.ExternType,
    t.BlockRef,
    t.TableType,
    t.TypeName,
    t.CalleeType,
    t.ActionType,
    t.ApplyResult,
    t.ActionRun,
)


class ExpressionChecker(TypeResolver):
    """Adds expressions."""

    in_parser = False

    def call(self, call: s.Call) -> s.Expr:
        """Check a call."""
        raise NotImplementedError

    def coerce(self, expr: s.Expr, target: t.Type, what: str) -> s.Expr:
        """The checked expression converted implicitly to a type. Raises P4Error if it cannot be."""
        return convert(expr, target, what)

    def expr(self, expr: s.Expr, expected: t.Type | None = None) -> s.Expr:
        """Check an expression; gives the node to use in its place."""
        match expr:
            case s.IntLit():
                return self._int_literal(expr)
            case s.BoolLit():
                expr.type = t.BOOL
            case s.StringLit():
                expr.type = t.STRING
            case s.Name():
                self._name(expr)
            case s.TypeExpr():
                expr.type = t.TypeName(self.resolve(expr.node))
            case s.Member():
                self._member(expr)
            case s.Index():
                self._index(expr)
            case s.Slice():
                self._slice(expr)
            case s.Unary():
                return self._unary(expr)
            case s.Binary():
                return self._binary(expr)
            case s.Ternary():
                self._ternary(expr, expected)
            case s.Cast():
                return self._cast(expr)
            case s.Call():
                return self.call(expr)
            case s.ListExpr():
                expr.items = [self.expr(item) for item in expr.items]
                expr.type = t.TupleType(tuple(item.type for item in expr.items))
            case s.StructExpr():
                self._struct(expr)
            case s.InvalidHeader():
                expr.type = t.INVALID_HEADER
            case s.DefaultValue():
                expr.type = t.DEFAULT
            case s.Current():
                pass
            case _:
                fail(expr, "this cannot stand here")
        return expr if expected is None else self.coerce(expr, expected, "the expression")

    def condition(self, expr: s.Expr) -> s.Expr:
        """A checked expression of type bool."""
        checked = self.expr(expr)
        if checked.type is not t.BOOL:
            fail(expr, f"a condition must be bool, not {checked.type}")
        return checked

    def _int_literal(self, expr: s.IntLit) -> s.Expr:
        if expr.width is None:
            expr.type = t.INTEGER
            return expr
        if expr.signed and not expr.width:
            fail(expr, "int<0> is no type")
        type_ = t.BitType(expr.width, expr.signed)
        if not (0 <= expr.value <= type_.range[1]):
            fail(expr, f"{expr.value} does not fit {type_}")
        expr.type = type_
        return expr

    def _name(self, expr: s.Name) -> None:
        found = self.scope.lookup_global(expr.name) if expr.absolute else self.scope.lookup(expr.name)
        if not found:
            fail(expr, refusal(expr.name) or f"unknown name {expr.name}")
        decl = expr.decl = found[0]
        match decl:
            case s.VarDecl() | s.ConstDecl() | s.Param() | s.Instantiation():
                expr.type = decl.type
            case s.ActionDecl():
                expr.type = t.ActionType(decl)
            case s.TableDecl():
                expr.type = t.TableType(decl)
            case s.Callable():
                expr.type = t.CalleeType(expr.name, tuple(item for item in found if isinstance(item, s.Callable)))
            case s.ValueSetDecl():
                fail(expr, "value_set is not supported")
            case _:
                expr.type = t.TypeName(self.type_of_declaration(decl, (), expr.location))
        if expr.type is None:
            fail(expr, f"{expr.name} is used before it is declared")

    def _member(self, expr: s.Member) -> None:
        base = expr.base = self.expr(expr.base)
        match base.type:
            case t.TypeName(t.EnumType(members=members) as enum):
                if expr.name not in members:
                    fail(expr, f"{enum} has no member {expr.name}")
                expr.type = enum
            case t.TypeName(t.SimpleType("error")):
                if expr.name not in self.errors:
                    fail(expr, f"unknown error {expr.name}")
                expr.type = t.ERROR
            case t.RecordType(fields=fields) as record:
                if expr.name not in fields:
                    fail(expr, f"{record} has no field {expr.name}")
                expr.type = fields[expr.name]
            case t.StackType() as stack:
                self._stack_member(expr, stack)
            case t.ApplyResult(decl):
                kinds: dict[str, t.Type] = {"hit": t.BOOL, "miss": t.BOOL, "action_run": t.ActionRun(decl)}
                if expr.name not in kinds:
                    fail(expr, f"the result of apply() has no member {expr.name}")
                expr.type = kinds[expr.name]
            case _:
                fail(expr, f"{base.type} has no member {expr.name}")

    def _stack_member(self, expr: s.Member, stack: t.StackType) -> None:
        if expr.name in ("next", "last", "lastIndex") and not self.in_parser:
            fail(expr, f".{expr.name} of a header stack exists only in parsers")
        match expr.name:
            case "next" | "last":
                expr.type = stack.element
            case "lastIndex" | "size":
                expr.type = t.BitType(32)
            case _:
                fail(expr, f"a header stack has no member {expr.name}")

    def _index(self, expr: s.Index) -> None:
        base = expr.base = self.expr(expr.base)
        index = expr.index = self.expr(expr.index)
        bare = t.strip(index.type)
        if not (t.is_numeric(bare) or (isinstance(bare, t.EnumType) and bare.base is not None)):
            fail(index, f"an index must be a number, not {index.type}")
        value = try_evaluate(index)
        match base.type:
            case t.StackType(element, size):
                if value is not None and not 0 <= value < size:
                    fail(index, f"index {value} is outside the {size} elements of the stack")
                if value is None and isinstance(bare, t.BitType) and bare.signed:
                    fail(index, f"a stack's index must be unsigned, not {index.type}: it could be negative")
                expr.type = element
            case t.TupleType(items):
                if value is None or not 0 <= value < len(items):
                    fail(index, f"a tuple's index must be a constant from 0 to {len(items) - 1}")
                expr.type = items[value]
            case _:
                fail(expr, f"{base.type} cannot be indexed")

    def _slice(self, expr: s.Slice) -> None:
        base = expr.base = self.expr(expr.base)
        type_ = t.strip(base.type)
        if isinstance(type_, t.EnumType) and type_.base is not None:
            type_ = type_.base
        if not isinstance(type_, t.BitType):
            fail(expr, f"{base.type} has no bits to slice")
        high = self._bound(expr.high)
        low = self._bound(expr.low)
        if not 0 <= low <= high < type_.width:
            fail(expr, f"[{high}:{low}] is no slice of {type_}: need {type_.width - 1} >= high >= low >= 0")
        expr.bounds = (high, low)
        expr.type = t.BitType(high - low + 1)

    def _bound(self, expr: s.Expr) -> int:
        value = self.constant(self.expr(expr), "the bounds of a slice")
        if isinstance(value, bool) or not isinstance(value, int):
            fail(expr, f"a bound of a slice must be a number, not {value}")
        return value

    def _unary(self, expr: s.Unary) -> s.Expr:
        operand = expr.operand = self.expr(expr.operand)
        type_ = operand.type
        if expr.op == "!":
            if type_ is not t.BOOL:
                fail(expr, f"! needs a bool, not {type_}")
        elif not t.is_numeric(type_):
            fail(expr, f"{expr.op} needs a number, not {type_}")
        elif expr.op == "~" and type_ is t.INTEGER:
            fail(expr, "~ needs bit<N> or int<N>: give the constant a width")
        expr.type = type_
        return expr

    def _binary(self, expr: s.Binary) -> s.Expr:
        left, right = self.expr(expr.left), self.expr(expr.right)
        match expr.op:
            case "&&" | "||":
                if left.type is not t.BOOL or right.type is not t.BOOL:
                    fail(expr, f"{expr.op} needs two bools, not {left.type} and {right.type}")
                expr.type = t.BOOL
            case "==" | "!=":
                left, right = self._equal_operands(expr, left, right)
                expr.type = t.BOOL
            case "<<" | ">>":
                self._check_shift(expr, left, right)
                expr.type = left.type
            case "++":
                if not (isinstance(left.type, t.BitType) and isinstance(right.type, t.BitType)):
                    fail(expr, f"++ needs operands with widths, not {left.type} and {right.type}")
                expr.type = t.BitType(left.type.width + right.type.width, left.type.signed)
            case op:
                left, right = self._same_numbers(expr, left, right)
                expr.type = t.BOOL if op in _COMPARISONS else left.type
        expr.left, expr.right = left, right
        return expr

    def _check_shift(self, expr: s.Binary, left: s.Expr, right: s.Expr) -> None:
        if not t.is_numeric(left.type) or not t.is_numeric(t.strip(right.type)):
            fail(expr, f"{expr.op} needs numbers, not {left.type} and {right.type}")
        amount = try_evaluate(right)
        if isinstance(right.type, t.BitType) and right.type.signed:
            fail(right, f"the amount of {expr.op} must be unsigned")
        if amount is not None and amount < 0:
            fail(right, f"shift by a negative amount, {amount}")
        if left.type is t.INTEGER and amount is None:
            fail(left, f"give the left operand of {expr.op} a width: the amount is not a constant")

    def _same_numbers(self, expr: s.Binary, left: s.Expr, right: s.Expr) -> tuple[s.Expr, s.Expr]:
        left, right = _enum_value(left), _enum_value(right)
        if not (t.is_numeric(left.type) and t.is_numeric(right.type)):
            fail(expr, f"{expr.op} needs two numbers, not {left.type} and {right.type}")
        if left.type is t.INTEGER and right.type is not t.INTEGER:
            left = self.coerce(left, right.type, f"the left operand of {expr.op}")
        elif right.type is t.INTEGER and left.type is not t.INTEGER:
            right = self.coerce(right, left.type, f"the right operand of {expr.op}")
        if left.type != right.type:
            fail(expr, f"{expr.op} needs two operands of one type, not {left.type} and {right.type}")
        if expr.op in ("|+|", "|-|") and left.type is t.INTEGER:
            fail(expr, f"{expr.op} needs operands with widths")
        if expr.op in ("/", "%") and try_evaluate(right) == 0:
            fail(expr, "division by zero")
        if expr.op in ("/", "%") and isinstance(left.type, t.BitType) and left.type.signed:
            fail(expr, f"{expr.op} is not defined for {left.type}")
        return left, right

    def _equal_operands(self, expr: s.Binary, left: s.Expr, right: s.Expr) -> tuple[s.Expr, s.Expr]:
        if left.type != right.type:
            if isinstance(left.type, t.TupleType) or left.type in (t.INTEGER, t.INVALID_HEADER):
                left = self.coerce(left, _enum_value(right).type, f"the left operand of {expr.op}")
                right = _enum_value(right) if isinstance(left, s.IntLit) else right
            else:
                left = _enum_value(left) if t.is_numeric(right.type) else left
                right = self.coerce(right, left.type, f"the right operand of {expr.op}")
        if left.type != right.type:
            fail(expr, f"{left.type} and {right.type} cannot be compared")
        if left.type is t.VOID or isinstance(left.type, _INCOMPARABLE):
            fail(expr, f"{left.type} cannot be compared")
        return left, right

    def _ternary(self, expr: s.Ternary, expected: t.Type | None) -> None:
        expr.condition = self.condition(expr.condition)
        yes, no = self.expr(expr.yes, expected), self.expr(expr.no, expected)
        if yes.type in _UNSIZED and no.type not in _UNSIZED:
            yes = self.coerce(yes, no.type, "the first value of ?:")
        else:
            no = self.coerce(no, yes.type, "the second value of ?:")
        expr.yes, expr.no, expr.type = yes, no, yes.type

    def _cast(self, expr: s.Cast) -> s.Expr:
        assert expr.node is not None
        target = self.resolve(expr.node)
        operand = expr.operand = self.expr(expr.operand)
        source = operand.type
        if isinstance(source, t.TupleType) or source in (t.INVALID_HEADER, t.DEFAULT):
            return self.coerce(operand, target, "the value cast")
        if not explicit_cast_allowed(source, target):
            fail(expr, f"cannot cast {source} to {target}")
        if source is t.INTEGER and isinstance(target, t.BitType):
            value = try_evaluate(operand)
            if value is not None:
                return literal(expr.location, target.wrap(value), target)
        expr.type = target
        return expr

    def _struct(self, expr: s.StructExpr) -> None:
        names: list[str] = []
        checked: list[tuple[str, s.Expr]] = []
        for name, value in expr.fields:
            if name in names:
                fail(value, f"{name} is given twice")
            names.append(name)
            checked.append((name, self.expr(value)))
        expr.fields = checked
        expr.type = t.TupleType(tuple(value.type for _name, value in checked), tuple(names))


def _enum_value(expr: s.Expr) -> s.Expr:
    """A serializable enum's value as the number it is."""
    if isinstance(expr.type, t.EnumType) and expr.type.base is not None:
        return s.Cast(expr.location, None, expr, type=expr.type.base)
    return expr
