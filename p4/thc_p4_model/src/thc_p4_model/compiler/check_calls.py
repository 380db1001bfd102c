"""Calls: the called thing, type arguments and arguments."""

from collections.abc import Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind, CallTarget
from thc_p4_model.compiler.check_constructors import ConstructorChecker
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.constants import SIZES
from thc_p4_model.compiler.inference import (
    finish_bindings,
    open_bindings,
    pick_overload,
    why_not_writable,
)
from thc_p4_model.compiler.unsupported import refusal

_HEADER_METHODS = {"isValid": t.BOOL, "setValid": t.VOID, "setInvalid": t.VOID}
_STACK_METHODS = ("push_front", "pop_front")


class CallChecker(ConstructorChecker):
    """Adds calls."""

    context = ""
    """What the code being checked belongs to: `control`, `action`, `parser`, `function`, `method` or empty."""

    def call(self, call: s.Call) -> s.Expr:
        """Check a call."""
        callee = call.callee
        if isinstance(callee, s.Member):
            self._method(call, callee)
            return call
        checked = self.expr(callee)
        match checked.type:
            case t.TypeName(named):
                self.construct(call, named, call.args)
            case t.CalleeType(name, decls):
                self._function(call, pick_overload(name, decls, call.args, call.location))
            case t.ActionType(decl):
                if self.context not in ("control", "action"):
                    fail(call, f"action {decl.name} cannot be called here")
                args = self.bind(decl.name, call, decl.params, {}, call.args)
                self.resolved(call, CallTarget(CallKind.ACTION, decl.name, decl, None, (), args, t.VOID))
            case other:
                fail(call, f"{other} cannot be called")
        return call

    def _type_args(self, call: s.Call, params: Sequence[s.TypeParam], name: str) -> t.Bindings:
        args = [self.resolve(node) for node in call.type_args]
        if args and len(args) != len(params):
            fail(call, f"{name} takes {len(params)} type arguments, not {len(args)}")
        return open_bindings(params, args)

    def _function(self, call: s.Call, decl: s.Callable) -> None:
        bindings = self._type_args(call, decl.type_params, decl.name)
        args = self.bind(decl.name, call, decl.params, bindings, call.args)
        if decl.name == "verify" and isinstance(decl, s.ExternFunction) and self.context != "parser":
            fail(call, "verify can only be called in a parser")
        kind = CallKind.EXTERN_FUNCTION if isinstance(decl, s.ExternFunction) else CallKind.FUNCTION
        self.resolved(call, self._target(kind, decl, None, bindings, args))

    def _target(
        self,
        kind: CallKind,
        decl: s.Callable,
        base: s.Expr | None,
        bindings: t.Bindings,
        args: list[BoundArgument],
    ) -> CallTarget:
        closed = finish_bindings(bindings)
        type_args = tuple(t.substitute(t.TypeVar(param), closed) for param in decl.type_params)
        return CallTarget(kind, decl.name, decl, base, type_args, args, t.substitute(decl.result_type, closed))

    # Methods

    def _method(self, call: s.Call, callee: s.Member) -> None:
        base = callee.base = self.expr(callee.base)
        name = callee.name
        if name in SIZES and not isinstance(base.type, (t.ExternType, t.BlockRef)):
            self._size(call, base, name)
            return
        match base.type:
            case t.ExternType(decl, args):
                self._extern_method(call, base, name, decl, args)
            case t.TableType(decl):
                self._table_apply(call, base, name, decl)
            case t.BlockRef(decl):
                self._block_apply(call, base, None, name, decl)
            case t.BlockTypeRef(decl) if decl.keyword != "package" and not decl.type_params:
                self._block_apply(call, base, None, name, decl)
            case t.TypeName(t.BlockRef(decl) as named):
                self._block_apply(call, None, named, name, decl)
            case t.RecordType(keyword="header" | "header_union") as record:
                self._header_method(call, base, name, record)
            case t.StackType():
                self._stack_method(call, base, name)
            case other:
                fail(call, f"{other} has no method {name}")

    def _extern_method(
        self, call: s.Call, base: s.Expr, name: str, decl: s.ExternDecl, type_args: tuple[t.Type, ...]
    ) -> None:
        overloads = [method for method in decl.methods or [] if method.name == name and name != decl.name]
        if not overloads:
            fail(call, refusal(f"{decl.name}.{name}") or f"{decl.name} has no method {name}")
        method = pick_overload(f"{decl.name}.{name}", overloads, call.args, call.location)
        own = {t.TypeVar(param): arg for param, arg in zip(decl.type_params, type_args, strict=True)}
        bindings = {**own, **self._type_args(call, method.type_params, name)}
        bindings.update({variable: variable for variable, bound in own.items() if bound is t.DONT_CARE})
        args = self.bind(f"{decl.name}.{name}", call, method.params, bindings, call.args)
        if decl.name == "packet_in" and name == "extract":
            self._check_extract(call, args)
        self.resolved(call, self._target(CallKind.EXTERN_METHOD, method, base, bindings, args))

    def _check_extract(self, call: s.Call, args: list[BoundArgument]) -> None:
        header = args[0].type if args[0].value is None else args[0].value.type
        if not t.is_header(header):
            fail(call, f"extract needs a header, not {header}: name its type with extract<T>(_)")
        if t.has_varbit(header) != (len(args) == 2):
            fail(call, f"extract of {header} takes {2 if t.has_varbit(header) else 1} arguments")

    def _table_apply(self, call: s.Call, base: s.Expr, name: str, decl: s.TableDecl) -> None:
        if name != "apply":
            fail(call, f"a table has no method {name}")
        if call.args:
            fail(call, "the apply of a table takes no arguments")
        if self.context != "control":
            fail(call, f"table {decl.name} can only be applied in the apply block of a control")
        self.resolved(call, CallTarget(CallKind.TABLE, decl.name, decl, base, (), [], t.ApplyResult(decl)))

    def _block_apply(
        self,
        call: s.Call,
        base: s.Expr | None,
        constructed: t.Type | None,
        name: str,
        decl: s.ParserDecl | s.ControlDecl | s.BlockType,
    ) -> None:
        if name != "apply":
            fail(call, f"{decl.name} has no method {name}")
        is_parser = isinstance(decl, s.ParserDecl) or (isinstance(decl, s.BlockType) and decl.keyword == "parser")
        wanted = "parser" if is_parser else "control"
        if self.context != wanted:
            fail(call, f"{wanted} {decl.name} cannot be applied in a {self.context or 'declaration'}")
        if (
            constructed is not None
            and not isinstance(decl, s.BlockType)
            and any(not param.optional for param in decl.constructor_params)
        ):
            fail(call, f"{decl.name} has constructor parameters: instantiate it")
        args = self.bind(f"{decl.name}.apply", call, decl.params, {}, call.args)
        self.resolved(call, CallTarget(CallKind.BLOCK, decl.name, decl, base, (), args, t.VOID, constructed))

    def _header_method(self, call: s.Call, base: s.Expr, name: str, record: t.RecordType) -> None:
        if name not in _HEADER_METHODS:
            fail(call, f"{record} has no method {name}")
        if record.keyword == "header_union" and name == "setValid":
            fail(call, f"{name} is a method of headers, not of header unions")
        if call.args:
            fail(call, f"{name} takes no arguments")
        if name != "isValid":
            self._require_writable(base, name)
        self.resolved(call, CallTarget(CallKind.BUILT_IN, name, None, base, (), [], _HEADER_METHODS[name]))

    def _require_writable(self, base: s.Expr, name: str) -> None:
        reason = why_not_writable(base)
        if reason is not None:
            fail(base, f"{name} changes its object, but {reason}")

    def _stack_method(self, call: s.Call, base: s.Expr, name: str) -> None:
        if name not in _STACK_METHODS:
            fail(call, f"a header stack has no method {name}")
        if len(call.args) != 1 or call.args[0].value is None:
            fail(call, f"{name} takes 1 argument, not {len(call.args)}")
        self._require_writable(base, name)
        count = self.expr(call.args[0].value)
        value = self.constant(count, f"the argument of {name}")
        if not isinstance(value, int) or value < 0:
            fail(count, f"the argument of {name} must be a number that is not negative, not {value}")
        at = call.location
        param = s.Param(at, [], "count", "in", s.BitsTypeNode(at, "int", None), None, type=t.INTEGER)
        args = [BoundArgument(param, t.INTEGER, count)]
        self.resolved(call, CallTarget(CallKind.BUILT_IN, name, None, base, (), args, t.VOID))

    def _size(self, call: s.Call, base: s.Expr, name: str) -> None:
        named = base.type.named if isinstance(base.type, t.TypeName) else None
        if call.args:
            fail(call, f"{name} takes no arguments")
        value_base = None if named is not None else base
        self.resolved(call, CallTarget(CallKind.BUILT_IN, name, None, value_base, (), [], t.INTEGER, named))
