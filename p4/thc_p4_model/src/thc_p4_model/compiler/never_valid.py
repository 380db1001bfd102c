"""Headers that nothing in a program makes valid. Programs use such headers as metadata, and they keep written values.

Validity is tracked by place: a variable, a parameter, or a field of a record, whichever value holds it. Places between
which headers are copied or passed form one group.
"""

from collections.abc import Hashable

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind
from thc_p4_model.compiler.walk import walk

_VALID = "valid"
_EXTERNS = (CallKind.EXTERN_FUNCTION, CallKind.EXTERN_METHOD)
_INLINED = (CallKind.FUNCTION, CallKind.ACTION, CallKind.BLOCK)


class NeverValid:
    """The headers of a checked program that stay invalid."""

    def __init__(self, tree: s.Program) -> None:
        self._groups: dict[Hashable, Hashable] = {}
        for node in walk(tree):
            self._visit(node)

    def __contains__(self, header: s.Expr) -> bool:
        """Whether the header that the expression names is never valid."""
        return self._group(_place(header)) != self._group(_VALID)

    def _group(self, place: Hashable) -> Hashable:
        while place in self._groups:
            place = self._groups[place]
        return place

    def _join(self, one: Hashable, other: Hashable) -> None:
        first, second = self._group(one), self._group(other)
        if first != second:
            self._groups[first] = second

    def _visit(self, node: s.Node) -> None:
        match node:
            case s.Assign():
                self._flow(_place(node.target), node.target.type, node.value)
            case s.VarDecl(init=s.Expr() as init):
                self._flow(node, node.type, init)
            case s.ForIn(variable=variable):
                self._join(variable, _VALID)
            case s.ParserDecl(params=params) | s.ControlDecl(params=params):
                for param in params:  # the architecture passes the same header to several blocks
                    header = _element(param.type)
                    if isinstance(header, t.RecordType):
                        self._join(param, header.decl)
            case s.Instantiation(body=list() as body):
                for function in body:
                    for param in getattr(function, "params", ()):
                        self._join(param, _VALID)
            case s.ActionRef(bound=bound):
                self._pass(bound)
            case s.Call():
                self._call(node)

    def _call(self, call: s.Call) -> None:
        target = call.target
        if target.kind in _INLINED:
            self._pass(target.args)
        elif target.kind in _EXTERNS:
            self._fill(call, target.result)
            for arg in target.args:
                if arg.is_written and arg.value is not None:
                    self._fill(_place(arg.value), arg.value.type)
        elif target.name == "setValid" and target.base is not None:
            self._join(_place(target.base), _VALID)

    def _pass(self, args: list[BoundArgument]) -> None:
        for arg in args:
            if arg.value is not None:
                self._flow(arg.param, arg.value.type, arg.value)
                if arg.is_written and isinstance(arg.param.type, t.TypeVar):
                    self._fill(_place(arg.value), arg.value.type)

    def _fill(self, place: Hashable, type_: t.Type) -> None:
        """An extern fills a value: its headers become valid."""
        match type_:
            case t.RecordType(keyword="header") | t.TypeVar():
                self._join(place, _VALID)
            case t.RecordType(fields=fields, decl=decl):
                for name, field in fields.items():
                    self._fill((decl, name), field)
            case t.StackType(element):
                self._fill(place, element)

    def _flow(self, place: Hashable, type_: t.Type, value: s.Expr) -> None:
        """A value goes to a place."""
        is_struct = isinstance(type_, t.RecordType) and type_.keyword != "header"
        match value:
            case s.Ternary(yes=yes, no=no):
                self._flow(place, type_, yes)
                self._flow(place, type_, no)
            case s.ListExpr(items=items) if isinstance(type_, t.StackType):
                for item in items:
                    self._flow(place, type_.element, item)
            case s.ListExpr() | s.StructExpr() if is_struct and isinstance(type_, t.RecordType):
                items = value.items if isinstance(value, s.ListExpr) else [item for _name, item in value.fields]
                for (name, field), item in zip(type_.fields.items(), items, strict=True):
                    self._flow((type_.decl, name), field, item)
            case s.InvalidHeader() | s.DefaultValue():
                pass
            case _ if (t.is_object(type_) and not is_struct) or isinstance(type_, t.TypeVar):
                self._join(place, _place(value))


def _element(type_: t.Type) -> t.Type:
    return type_.element if isinstance(type_, t.StackType) else type_


def _place(expr: s.Expr) -> Hashable:
    match expr:
        case s.Name(decl=s.VarDecl() | s.Param() as decl):
            return decl
        case s.Member(base=base, name=name) if isinstance(base.type, t.RecordType):
            return (base.type.decl, name)
        case s.Member(base=base) | s.Index(base=base) if isinstance(base.type, t.StackType):
            return _place(base)
    return _VALID
