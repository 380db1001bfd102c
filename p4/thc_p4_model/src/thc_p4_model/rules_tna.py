"""Tofino's rules that a program can be checked for without packets.

Other modules check the rest: `externs.tna_registers` accesses to registers and their value types,
`architectures.tna_pipe` the reach of an egress parser. Only the real compiler knows how many stages a program takes.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping

from thc_p4_model.blocks import block_of
from thc_p4_model.compiler import syntax as s
from thc_p4_model.interfaces import Block, Kind, Location, P4Error, Package, TypeInfo

PHV_BITS = 4096
"""Packet header vector: the headers and metadata of a packet, of ingress and of egress, in each pipe."""


def phv_bits(pipeline: Package) -> dict[str, int]:
    """Bits of headers and metadata that each gress names; P4Error when one alone is more than the whole PHV.

    Compilers let headers that are never valid together share space, which is not taken into account.
    """
    used = {}
    for gress in ("ingress", "egress"):
        parser = block_of(pipeline, f"{gress}_parser")
        used[gress] = sum(_bits(param.type) for param in parser.params[1:3])
        if used[gress] > PHV_BITS:
            _phv_error(parser, used[gress])
    return used


def _phv_error(parser: Block, bits: int) -> None:
    sizes = [f"{name} {_bits(each)}" for param in parser.params[1:3] for name, each in param.type.fields]
    raise P4Error(
        parser.location, f"headers and metadata of {parser.name} take {bits} of {PHV_BITS} PHV bits: {', '.join(sizes)}"
    )


def _bits(type_info: TypeInfo) -> int:
    if type_info.kind is Kind.STACK:
        assert type_info.element is not None
        return type_info.size * _bits(type_info.element)
    if type_info.fields:
        return sum(_bits(field) for _, field in type_info.fields)
    return type_info.width


@functools.lru_cache(maxsize=16)
def check_tree(program: s.Program) -> None:
    """Limits of controls: no products or quotients of packet values, and no table or control twice on one path."""
    for declaration in program.declarations:
        if isinstance(declaration, s.ControlDecl):
            _check_arithmetic(declaration)
            _Paths(declaration).check()


# Arithmetic.


def _check_arithmetic(control: s.ControlDecl) -> None:
    for node in _nodes(control):
        if isinstance(node, s.Binary) and node.op in ("*", "/", "%") and not _constant(node):
            raise P4Error(node.location, f"control {control.name}: match-action units cannot compute {node.op!r}")


def _constant(expr: s.Expr) -> bool:
    """Whether an expression is made of literals and constants only."""
    variables = [node for node in _nodes(expr) if isinstance(node, s.Name)]
    return all(isinstance(node.decl, s.ConstDecl) for node in variables)


def _nodes(root: object) -> Iterator[s.Node]:
    """The nodes of a tree as written, without the checker's links."""
    if isinstance(root, list | tuple):
        for item in root:
            yield from _nodes(item)
    elif isinstance(root, s.Node):
        yield root
        for field in dataclasses.fields(root):
            if field.repr:  # the checker's link to a node is not part of its text
                yield from _nodes(getattr(root, field.name))


# Tables and paths.

Applied = Counter[str]
"""How often each table or control of a control is applied."""


class _Paths:
    """The paths through the apply block of a control."""

    def __init__(self, control: s.ControlDecl) -> None:
        self._control = control
        applied = (s.TableDecl, s.Instantiation)
        self._once = {each.name for each in control.locals if isinstance(each, applied)}
        self._first: dict[str, Location] = {}

    def check(self) -> None:
        """P4Error at the second application of a table or control instance."""
        self._after(self._control.body, Counter())

    def _after(self, node: object, before: Applied) -> Applied | None:
        """Most applications on a path up to the end of the node; None when no path gets there."""
        match node:
            case s.Return() | s.Exit():
                return None
            case s.Block(statements=statements):
                return self._sequence(statements, before)
            case s.If(condition=condition, yes=yes, no=no):
                entered = self._apply_in(condition, before)
                return _most(self._after(yes, entered), entered if no is None else self._after(no, entered))
            case s.Switch(subject=subject, cases=cases):
                entered = self._apply_in(subject, before)
                blocks = [case.block for case in cases if case.block is not None]
                ends = [self._after(block, entered) for block in blocks]
                if not any(case.label is None for case in cases):
                    ends.append(entered)
                return _most(*ends)
            case _:
                return self._apply_in(node, before)

    def _sequence(self, statements: list[s.Stmt], before: Applied) -> Applied | None:
        state: Applied | None = before
        for statement in statements:
            if state is None:
                return None
            state = self._after(statement, state)
        return state

    def _apply_in(self, node: object, before: Applied) -> Applied:
        """Applications inside an expression or simple statement."""
        applied = before.copy()
        for call in _nodes(node):
            if not isinstance(call, s.Call) or not isinstance(call.callee, s.Member) or call.callee.name != "apply":
                continue
            base = call.callee.base
            if isinstance(base, s.Name) and base.name in self._once:
                applied[base.name] += 1
                if applied[base.name] > 1:
                    first = self._first[base.name]
                    raise P4Error(
                        call.location, f"{base.name} is applied twice on one path, before at line {first.line}"
                    )
                self._first[base.name] = call.location
        return applied


def _most(*ends: Mapping[str, int] | None) -> Applied | None:
    """The larger count of every table over paths that continue."""
    reached = [end for end in ends if end is not None]
    if not reached:
        return None
    result: Applied = Counter()
    for end in reached:
        result |= Counter(end)
    return result
