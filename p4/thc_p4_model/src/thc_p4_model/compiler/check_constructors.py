"""Arguments of calls, and constructors."""

from collections.abc import Mapping, Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind, CallTarget
from thc_p4_model.compiler.check_expressions import ExpressionChecker
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.inference import (
    bound_argument,
    finish_bindings,
    match_arguments,
    open_bindings,
    pick_overload,
    unify,
    why_not_writable,
)

_NOT_VALUES = (t.ActionRun, t.ActionType, t.ApplyResult, t.CalleeType, t.TableType, t.TypeName)


class ConstructorChecker(ExpressionChecker):
    """Adds arguments and constructors."""

    def resolved(self, call: s.Call, target: CallTarget) -> None:
        """Note the meaning of a call."""
        call.target = target
        call.type = target.result

    def bind(
        self,
        name: str,
        node: s.Node,
        params: Sequence[s.Param],
        bindings: t.Bindings,
        args: Sequence[s.Argument],
    ) -> list[BoundArgument]:
        """Check arguments, infer open types in `bindings`, convert. Raises P4Error."""
        pairs = match_arguments(name, params, args, node.location)
        checked: list[s.Expr | None] = []
        for param, arg in pairs:
            value = None
            if arg is not None and arg.value is not None:
                value = self.expr(arg.value)
                unify(param.type, value.type, bindings)
            checked.append(value)
        closed = finish_bindings(bindings)
        bound: list[BoundArgument] = []
        for (param, arg), value in zip(pairs, checked, strict=True):
            type_ = t.substitute(param.type, closed)
            if arg is not None and value is None and param.direction != "out":
                fail(arg, f"{name}: _ can only stand for an out argument, and {param.name} is none")
            if value is not None:
                value = self._argument(name, param, type_, value)
            bound.append(bound_argument(param, type_, value, arg is not None))
        return bound

    def _argument(self, name: str, param: s.Param, type_: t.Type, value: s.Expr) -> s.Expr:
        what = f"argument {param.name} of {name}"
        if param.direction in ("out", "inout"):
            reason = why_not_writable(value)
            if reason is not None:
                fail(value, f"{what} is {param.direction}, but {reason}")
            if value.type != type_ and not isinstance(type_, t.TypeVar) and type_ is not t.DONT_CARE:
                fail(value, f"{what} must be {type_}, not {value.type}")
            return value
        if isinstance(value.type, _NOT_VALUES) or value.type is t.VOID:
            fail(value, f"{what} must be a value, not {value.type}")
        return self.coerce_argument(value, type_, what)

    def coerce_argument(self, value: s.Expr, type_: t.Type, what: str) -> s.Expr:
        """An argument converted; blocks are compared with the block type that is asked for."""
        if isinstance(type_, t.BlockTypeRef) and isinstance(value.type, t.BlockRef):
            self._check_block(value, value.type.decl, type_, what)
            return value
        if isinstance(type_, t.BlockTypeRef) and isinstance(value.type, t.BlockTypeRef):
            if value.type.decl is not type_.decl:
                fail(value, f"{what} must be {type_}, not {value.type}")
            return value
        return self.coerce(value, type_, what)

    def _check_block(
        self, value: s.Expr, block: s.ParserDecl | s.ControlDecl, wanted: t.BlockTypeRef, what: str
    ) -> None:
        keyword = "parser" if isinstance(block, s.ParserDecl) else "control"
        declared = wanted.decl
        if declared.keyword != keyword:
            fail(value, f"{what} must be a {declared.keyword}, not the {keyword} {block.name}")
        needed = sum(1 for param in declared.params if not param.optional)
        if not needed <= len(block.params) <= len(declared.params):
            fail(
                value,
                f"{what}: {block.name} has {len(block.params)} parameters, {declared.name} {len(declared.params)}",
            )
        own = {t.TypeVar(param): arg for param, arg in zip(declared.type_params, wanted.args, strict=True)}
        for formal, given in zip(declared.params, block.params, strict=False):
            type_ = t.substitute(formal.type, own)
            if type_ != given.type and not isinstance(type_, t.TypeVar):
                fail(given, f"{what}: parameter {given.name} of {block.name} must be {type_}, not {given.type}")
            if formal.direction != given.direction:
                fail(given, f"{what}: parameter {given.name} of {block.name} must be {formal.direction or 'plain'}")

    def construct(self, node: s.Call, named: t.Type, args: Sequence[s.Argument]) -> None:
        """Resolve `Type(args)`."""
        match named:
            case t.ExternType(decl, type_args):
                self._construct_extern(node, decl, type_args, args)
            case t.BlockRef(decl):
                bound = self.bind(decl.name, node, decl.constructor_params, {}, args)
                self.resolved(node, _constructor(decl, (), bound, named))
            case t.BlockTypeRef(decl, type_args) if decl.keyword == "package":
                bindings = open_bindings(decl.type_params, type_args)
                bound = self.bind(decl.name, node, decl.params, bindings, args)
                final = _final_args(decl.type_params, bindings)
                self.resolved(node, _constructor(decl, final, bound, t.BlockTypeRef(decl, final)))
            case _:
                fail(node, f"{named} cannot be instantiated")

    def _construct_extern(
        self, node: s.Call, decl: s.ExternDecl, type_args: tuple[t.Type, ...], args: Sequence[s.Argument]
    ) -> None:
        constructors = [method for method in decl.methods or [] if method.name == decl.name]
        if not constructors:
            fail(node, f"extern {decl.name} has no constructor")
        constructor = pick_overload(decl.name, constructors, args, node.location)
        bindings = open_bindings(decl.type_params, type_args)
        bound = self.bind(decl.name, node, constructor.params, bindings, args)
        final = _final_args(decl.type_params, bindings)
        self.resolved(node, _constructor(decl, final, bound, t.ExternType(decl, final)))


def _final_args(params: Sequence[s.TypeParam], bindings: Mapping[t.TypeVar, t.Type]) -> tuple[t.Type, ...]:
    """The inferred type arguments; `_` for unknown ones."""
    return tuple(
        t.DONT_CARE if bindings[t.TypeVar(param)] == t.TypeVar(param) else bindings[t.TypeVar(param)]
        for param in params
    )


def _constructor(decl: s.Decl, type_args: tuple[t.Type, ...], args: list[BoundArgument], made: t.Type) -> CallTarget:
    return CallTarget(CallKind.CONSTRUCTOR, decl.name, decl, None, type_args, args, made, made)
