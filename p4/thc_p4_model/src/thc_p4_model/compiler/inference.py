"""Inference of type arguments, and the matching of arguments to parameters."""

from collections.abc import Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.interfaces import Location, P4Error


def unify(formal: t.Type, actual: t.Type, bindings: t.Bindings) -> None:
    """Bind the type variables of `formal` as far as `actual` tells; mismatches are left to the later conversion."""
    if isinstance(formal, t.TypeVar):
        _bind(formal, actual, bindings)
        return
    match formal, actual:
        case t.ExternType(decl, formals), t.ExternType(other, actuals) if decl is other:
            _unify_all(formals, actuals, bindings)
        case t.BlockTypeRef(decl, formals), t.BlockTypeRef(other, actuals) if decl is other:
            _unify_all(formals, actuals, bindings)
        case t.BlockTypeRef(decl, formals), t.BlockRef(block):
            own = {t.TypeVar(param): arg for param, arg in zip(decl.type_params, formals, strict=True)}
            for declared, given in zip(decl.params, block.params, strict=False):
                unify(t.substitute(declared.type, own), given.type, bindings)
        case t.TupleType(formals), t.TupleType(actuals):
            _unify_all(formals, actuals, bindings)
        case t.StackType(element), t.StackType(other_element):
            unify(element, other_element, bindings)


def _unify_all(formals: Sequence[t.Type], actuals: Sequence[t.Type], bindings: t.Bindings) -> None:
    for formal, actual in zip(formals, actuals, strict=False):
        unify(formal, actual, bindings)


def _bind(formal: t.TypeVar, actual: t.Type, bindings: t.Bindings) -> None:
    if formal == actual or formal not in bindings:
        return
    bound = bindings[formal]
    if bound == formal or bound is t.DONT_CARE or (bound is t.INTEGER and isinstance(t.strip(actual), t.BitType)):
        bindings[formal] = actual


def open_bindings(params: Sequence[s.TypeParam], args: Sequence[t.Type]) -> t.Bindings:
    """Bindings of given type arguments; parameters without argument, or with `_`, are bound to themselves: open."""
    bindings: t.Bindings = {t.TypeVar(param): t.TypeVar(param) for param in params}
    for param, arg in zip(params, args, strict=False):
        if arg is not t.DONT_CARE:
            bindings[t.TypeVar(param)] = arg
    return bindings


def match_arguments(
    name: str, params: Sequence[s.Param], args: Sequence[s.Argument], location: Location
) -> list[tuple[s.Param, s.Argument | None]]:
    """Each parameter with its argument, None for an absent optional one. Raises P4Error."""
    named = [arg for arg in args if arg.name is not None]
    if named and len(named) != len(args):
        raise P4Error(location, f"{name}: either all arguments are named or none")
    by_name = {param.name: index for index, param in enumerate(params)}
    slots: list[s.Argument | None] = [None] * len(params)
    for position, arg in enumerate(args):
        index = position if arg.name is None else by_name.get(arg.name, -1)
        if not 0 <= index < len(params):
            problem = (
                f"takes {len(params)} arguments, not {len(args)}" if index >= 0 else f"has no parameter {arg.name}"
            )
            fail(arg, f"{name} {problem}")
        if slots[index] is not None:
            fail(arg, f"{name}: {params[index].name} is given twice")
        slots[index] = arg
    for param, slot in zip(params, slots, strict=True):
        if slot is None and not param.optional:
            needed = sum(1 for item in params if not item.optional)
            at_least = "at least " if needed < len(params) else ""
            raise P4Error(
                location,
                f"{name} takes {at_least}{needed} arguments, not {len(args)}: {param.name} is missing",
            )
    return list(zip(params, slots, strict=True))


def pick_overload(name: str, decls: Sequence[s.Callable], args: Sequence[s.Argument], location: Location) -> s.Callable:
    """The overload that takes these arguments, by their number and names. Raises P4Error."""
    if len(decls) == 1:
        return decls[0]
    names = {arg.name for arg in args if arg.name is not None}
    fitting = [
        decl
        for decl in decls
        if sum(1 for param in decl.params if not param.optional) <= len(args) <= len(decl.params)
        and names <= {param.name for param in decl.params}
    ]
    if not fitting:
        counts = " or ".join(str(len(decl.params)) for decl in decls)
        raise P4Error(location, f"{name} takes {counts} arguments, not {len(args)}")
    exact = [decl for decl in fitting if len(decl.params) == len(args)]
    return (exact or fitting)[0]


def why_not_writable(expr: s.Expr) -> str | None:
    """Why a value cannot be written there; None if it can."""
    match expr:
        case s.Name(decl=s.VarDecl()):
            return None
        case s.Name(decl=s.Param(direction="out" | "inout")):
            return None
        case s.Name(name=name, decl=s.Param(direction=direction)):
            return f"{name} is an in parameter" if direction == "in" else f"{name} is a parameter without direction"
        case s.Name(name=name, decl=s.ConstDecl()):
            return f"{name} is a constant"
        case s.Member(base=base, name=name):
            if isinstance(base.type, t.StackType):
                return why_not_writable(base) if name in ("next", "last") else f".{name} cannot be written"
            if isinstance(base.type, t.RecordType):
                return why_not_writable(base)
        case s.Index(base=base) if isinstance(base.type, t.StackType):
            return why_not_writable(base)
        case s.Slice(base=base):
            return why_not_writable(base)
    return "this is not a place a value can be written to"


def finish_bindings(bindings: t.Bindings) -> t.Bindings:
    """Bindings without the open ones."""
    return {variable: bound for variable, bound in bindings.items() if bound != variable}


def bound_argument(param: s.Param, type_: t.Type, value: s.Expr | None, given: bool) -> BoundArgument:
    """A parameter with its converted argument, by default the default value."""
    if not given and param.default is not None:
        return BoundArgument(param, type_, param.default)
    return BoundArgument(param, type_, value, given)
