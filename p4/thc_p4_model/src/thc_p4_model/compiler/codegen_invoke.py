"""Calls by the calling convention of thc_p4_model.interfaces: of externs, and of functions of the program."""

from collections.abc import Sequence
from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument
from thc_p4_model.compiler.codegen_base import FunctionState, ReturnTarget, Variable
from thc_p4_model.compiler.codegen_places import Place, PlaceGenerator
from thc_p4_model.interfaces import Location


class InvokeGenerator(PlaceGenerator):
    """Adds invocation. `setup` collects the statements that prepare an instance, `infos` the objects they use."""

    def __init__(self) -> None:
        super().__init__()
        self.setup: list[str] = []
        self.infos: list[Any] = []
        self.locations: dict[str, Location] = {}
        """Of what the Python functions are made from."""
        self.global_bindings: dict[s.Node, Any] = {}
        self._functions: dict[tuple[s.FunctionDecl, tuple[t.Type, ...]], str] = {}

    def body(self, block: s.Block) -> None:
        """Emit a block."""
        raise NotImplementedError

    def add_info(self, info: Any) -> str:
        """Keep an object for the generated code; gives the code that finds it."""
        self.infos.append(info)
        return f"infos[{len(self.infos) - 1}]"

    def substituted(self, type_: t.Type) -> t.Type:
        """The type, type parameters of the function being generated replaced."""
        return t.substitute(type_, self.type_bindings)

    def passed(self, args: Sequence[BoundArgument]) -> list[BoundArgument]:
        """The arguments without absent optional ones at the end."""
        kept = list(args)
        while kept and kept[-1].value is None and not kept[-1].given:
            kept.pop()
        return kept

    def invoke(self, call: s.Call, function: str) -> str:
        """Emit the call of a Python function; gives code for the result, empty for void."""
        codes, places, outs = self._arguments(call)
        code = f"{function}({', '.join(codes)})"
        result = self.substituted(call.target.result)
        returned = ""
        if result is not t.VOID and not outs:
            returned = self.temp(code, "result")
        elif result is t.VOID and not outs:
            self.emit(code)
        elif result is t.VOID and len(outs) == 1 and outs[0] is not None:
            self.store_call(outs[0], code)
        else:
            returned = self._unpack(code, outs, result is not t.VOID)
        for place in places:
            for line in place.after:
                self.emit(line)
            if place.union is not None:
                self.emit(f"if {place.code}.valid: {place.union[0]}.select({place.union[1]!r})")
        return returned

    def _unpack(self, code: str, outs: Sequence[Place | None], has_result: bool) -> str:
        names = [self.name("out") for _ in outs]
        targets = [*([self.name("result")] if has_result else []), *names]
        self.emit(f"{', '.join(targets)} = {code}")
        for place, name in zip(outs, names, strict=True):
            if place is not None:
                self.store(place, name)
        return targets[0] if has_result else ""

    def _arguments(self, call: s.Call) -> tuple[list[str], list[Place], list[Place | None]]:
        """Codes of the arguments passed, places of objects written to, and where scalar results go."""
        codes: list[str] = []
        places: list[Place] = []
        outs: list[Place | None] = []
        for arg in self.passed(call.target.args):
            with self.captured() as lines:
                code = self._argument(arg, places, outs)
            if lines:
                codes = [self.stable(earlier) for earlier in codes]
                self.lines.extend(lines)
            if code:
                codes.append(code)
        return codes, places, outs

    def _argument(self, arg: BoundArgument, places: list[Place], outs: list[Place | None]) -> str:
        """Code of one argument; empty for out scalars, which are not passed."""
        type_ = self.type_of(arg.value) if arg.value is not None else self.substituted(arg.type)
        if arg.value is None:
            if not arg.is_written:
                return "None"
            if t.is_object(type_):
                return self.temp(self.types.new_code(type_), "ignored")
            outs.append(None)
            return ""
        if not arg.is_written:
            return self.value(arg.value)
        place = self.place(arg.value)
        if t.is_object(type_):
            places.append(place)
            return place.code
        outs.append(place)
        return self.copy_of(place) if arg.param.direction == "inout" else ""

    # Functions of the program

    def function_call(self, call: s.Call) -> str:
        """Emit the call of a function; gives code for the result, empty for void."""
        target = call.target
        decl = target.decl
        assert isinstance(decl, s.FunctionDecl)
        self.check_aliases(call)
        type_args = tuple(self.substituted(arg) for arg in target.type_args)
        key = (decl, type_args)
        if key not in self._functions:
            self._functions[key] = self.name(decl.name)
            bindings = {t.TypeVar(param): arg for param, arg in zip(decl.type_params, type_args, strict=True)}
            saved, self.type_bindings = self.type_bindings, bindings
            saved_bindings, self.bindings = self.bindings, self.global_bindings
            self.setup += self.python_function(self._functions[key], decl)
            self.bindings, self.type_bindings = saved_bindings, saved
        return self.invoke(call, self._functions[key])

    def python_function(self, name: str, decl: s.FunctionDecl) -> list[str]:
        """The lines of a Python function for a P4 function, in the present bindings."""
        self.locations[name] = decl.location
        params: list[str] = []
        outs: list[str] = []
        zeros: list[str] = []
        bindings: dict[s.Node, Any] = {}
        for param in decl.params:
            type_ = self.substituted(param.type)
            variable = self.name(param.name)
            bindings[param] = Variable(variable)
            if t.is_object(type_):
                params.append(variable)
                if param.direction == "out":
                    zeros.append(f"{variable}.reset()")
                continue
            if param.direction == "out":
                zeros.append(f"{variable} = {self.types.new_code(type_)}")
            else:
                params.append(variable)
            if param.direction in ("out", "inout"):
                outs.append(variable)
        saved = self.function_state, self.returns, self.indent
        self.function_state, self.returns, self.indent = FunctionState(), ReturnTarget(True, outs), 1
        with self.captured() as lines, self.bound(bindings):
            for zero in zeros:
                self.emit(zero)
            self.body(decl.body)
            if outs and self.substituted(decl.result_type) is t.VOID:
                self.emit(f"return {', '.join(outs)}")
        nonlocals = sorted(self.function_state.nonlocals)
        self.function_state, self.returns, self.indent = saved
        head = [f"def {name}({', '.join(params)}):"]
        if nonlocals:
            head.append(f"    nonlocal {', '.join(nonlocals)}")
        return head + (lines or ["    pass"])

    def check_aliases(self, call: s.Call) -> None:
        """Refuse overlapping arguments: P4 would copy the object, calls of functions pass a reference."""
        for one, other in self.aliases(call.target.args):
            self.fail(call, f"arguments {one.param.name} and {other.param.name} overlap: pass a copy of one")

    def objects(self, args: Sequence[BoundArgument]) -> list[BoundArgument]:
        """The arguments that are headers, structs, stacks or unions."""
        return [arg for arg in args if arg.value is not None and t.is_object(self.type_of(arg.value))]

    def aliases(self, args: Sequence[BoundArgument]) -> list[tuple[BoundArgument, BoundArgument]]:
        """Pairs of an object and another argument that may share parts, one of which is written.

        A scalar counts only if it is written itself: its value at the call is a copy in any case.
        """
        objects = self.objects(args)
        return [
            (one, other)
            for one in objects
            for other in args
            if one is not other and (other.is_written or (one.is_written and other in objects))
            if overlap(one.value, other.value)
        ]


def path_of(expr: s.Expr | None) -> list[object]:
    """The declaration and the members on the way to a place."""
    match expr:
        case s.Name(decl=decl):
            return [decl]
        case s.Member(base=base, name=name):
            return [*path_of(base), name]
        case s.Index(base=base):
            return [*path_of(base), "[]"]
        case s.Slice(base=base):
            return path_of(base)
    return [object()]


def overlap(one: s.Expr | None, other: s.Expr | None) -> bool:
    """Whether two places may share parts."""
    return all(a == b for a, b in zip(path_of(one), path_of(other), strict=False))
