"""Actions and sub-controls: their code is put in place of the call, so that their variables are Python locals."""

from collections.abc import Callable, Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind
from thc_p4_model.compiler.codegen_base import SIMPLE, BlockInstance, Constant, ExternInstance, ReturnTarget, Variable
from thc_p4_model.compiler.codegen_invoke import overlap
from thc_p4_model.compiler.codegen_places import Place
from thc_p4_model.compiler.codegen_statements import StatementGenerator
from thc_p4_model.compiler.walk import walk

_CALLEES = (s.ActionDecl, s.Instantiation)
"""Declarations whose code a call by name may run."""


class InlineGenerator(StatementGenerator):
    """Adds inlined code."""

    def block_body(self, instance: BlockInstance) -> None:
        """Emit the locals and the body of a parser or control, its parameters bound."""
        raise NotImplementedError

    def direct_instance(self, call: s.Call) -> BlockInstance:
        """The nameless instance behind `Type.apply()`."""
        raise NotImplementedError

    def inlined_call(self, call: s.Call) -> None:
        """Emit the call of an action, or of a parser or control."""
        if call.target.kind is CallKind.ACTION:
            assert isinstance(call.target.decl, s.ActionDecl)
            self.inline_action(call.target.decl, call.target.args)
            return
        instance = self._called_instance(call)
        args = [  # bound to the block's own parameters, which may differ from its declared type's
            BoundArgument(param, arg.type, arg.value, arg.given)
            for param, arg in zip(instance.decl.params, call.target.args, strict=True)
        ]
        shared = {one.param for one, _ in self.aliases(args)}
        bindings, outs = self._bind_arguments(args, instance, shared)
        self._inline(lambda: self.block_body(instance), {**instance.bindings, **bindings}, outs)

    def _called_instance(self, call: s.Call) -> BlockInstance:
        base = call.target.base
        if base is None:
            return self.direct_instance(call)
        binding = self.bindings.get(base.decl) if isinstance(base, s.Name) else None
        instance = binding.value if isinstance(binding, Constant) else binding
        if not isinstance(instance, BlockInstance):
            self.fail(call, "which instance is applied must be known at compile time")
        return instance

    def inline_action(self, decl: s.ActionDecl, args: Sequence[BoundArgument]) -> None:
        """Emit the body of an action."""
        shared = {one.param for one, _ in self.aliases(args)} | self._used_by_name(decl, args)
        bindings, outs = self._bind_arguments(args, None, shared)
        self._inline(lambda: self.body(decl.body), bindings, outs)

    def _used_by_name(self, decl: s.ActionDecl, args: Sequence[BoundArgument]) -> set[s.Param]:
        """Parameters whose object the action, or one that it calls, also uses by its own name: they get copies."""
        objects = self.objects(args)
        if not objects:
            return set()
        used = [node for node in _names_in(decl) if isinstance(node.decl, (s.VarDecl, s.Param))]
        return {arg.param for arg in objects if any(overlap(arg.value, node) for node in used)}

    def _inline(self, body: Callable[[], None], bindings: dict[s.Node, object], outs: list[tuple[Place, str]]) -> None:
        saved_returns, self.returns = self.returns, ReturnTarget(is_function=False, flag=self.name("returned"))
        exited, self.function_state.exits = self.function_state.exits, False
        with self.captured() as lines, self.bound(bindings):
            body()
        returns = self.returns
        self.returns = saved_returns
        exits = self.function_state.exits
        self.function_state.exits = exits or exited
        copies_on_exit = exits and bool(outs)
        if copies_on_exit:
            self.emit("try:")
            lines = ["    " + line for line in lines]
        if returns.used:
            self.emit("    " * copies_on_exit + "while True:")
            lines = ["    " + line for line in lines]
        self.lines.extend(lines)
        if returns.used:
            self.emit("    " * (copies_on_exit + 1) + "break")
        elif copies_on_exit and not lines:
            self.emit("    pass")
        if copies_on_exit:
            self.emit("finally:")
            self.indent += 1
        for place, variable in outs:
            self.store(place, variable)
            for line in place.after:
                self.emit(line)
        if copies_on_exit:
            self.indent -= 1

    def _bind_arguments(
        self, args: Sequence[BoundArgument], instance: BlockInstance | None, shared: set[s.Param]
    ) -> tuple[dict[s.Node, object], list[tuple[Place, str]]]:
        """Bindings of the parameters, and which variables to copy back to where."""
        bindings: dict[s.Node, object] = {}
        outs: list[tuple[Place, str]] = []
        for arg in args:
            cell = instance.cells.get(arg.param) if instance is not None else None
            bindings[arg.param] = self._bind_argument(arg, cell, outs, arg.param in shared)
        return bindings, outs

    def _bind_argument(
        self, arg: BoundArgument, cell: Variable | None, outs: list[tuple[Place, str]], is_shared: bool
    ) -> object:
        type_ = self.substituted(arg.type)
        if isinstance(type_, t.ExternType):
            return self._extern_argument(arg)
        if t.is_object(type_):
            return self._object_argument(arg, cell, outs, is_shared)
        if arg.value is None or arg.param.direction == "out":
            variable = self._set(cell, arg.param.name, self.types.new_code(type_))
            if arg.value is not None:
                outs.append((self.place(arg.value), variable.code))
            return variable
        if arg.param.direction == "inout":
            place = self.place(arg.value)
            variable = self._set(cell, arg.param.name, self.copy_of(place))
            outs.append((place, variable.code))
            return variable
        constant = self.constant_code(arg.value) if cell is None else None
        if constant is not None:
            return Constant(_value(constant))
        return self._set(cell, arg.param.name, self.value(arg.value))

    def _extern_argument(self, arg: BoundArgument) -> object:
        binding = self.bindings.get(arg.value.decl) if isinstance(arg.value, s.Name) else None
        if not isinstance(binding, (ExternInstance, Variable)):
            self.fail(arg.value or arg.param, "which extern is passed must be known at compile time")
        return binding

    def _object_argument(
        self, arg: BoundArgument, cell: Variable | None, outs: list[tuple[Place, str]], is_shared: bool
    ) -> Variable:
        """Objects are passed by reference unless another reference could show the difference to a copy."""
        new = self.types.new_code(self.substituted(arg.type))
        if arg.value is None:
            return self._set(cell, arg.param.name, new)
        if not arg.is_written:
            code = self.fresh(arg.value) if is_shared else self.value(arg.value)
        else:
            place = self.place(arg.value)
            code = place.code
            if is_shared or place.union is not None or place.after:
                variable = self._set(cell, arg.param.name, new if arg.param.direction == "out" else f"{code}.copy()")
                outs.append((place, variable.code))
                return variable
            if arg.param.direction == "out":
                self.emit(f"{code}.reset()")
        if cell is None and SIMPLE.match(code):
            return Variable(code)
        return self._set(cell, arg.param.name, code)

    def _set(self, cell: Variable | None, hint: str, code: str) -> Variable:
        """Emit the first value of a parameter; gives its variable."""
        variable = cell or Variable(self.name(hint))
        if cell is not None:
            self.function_state.nonlocals.add(cell.code)
        self.emit(f"{variable.code} = {code}")
        return variable


def _names_in(decl: s.ActionDecl) -> list[s.Name]:
    """The names used by an action and by its callees: actions, and externs with methods of the program."""
    todo: list[s.Node] = [decl]
    names: list[s.Name] = []
    for each in todo:
        found = [node for node in walk(each) if isinstance(node, s.Name)]
        names += found
        callees = [node.decl for node in found if isinstance(node.decl, _CALLEES)]
        todo += [callee for callee in dict.fromkeys(callees) if callee not in todo]
    return names


def _value(code: str) -> object:
    """The value of a literal's code."""
    return {"True": True, "False": False}.get(code) if code in ("True", "False") else _number_or_text(code)


def _number_or_text(code: str) -> object:
    return code[1:-1] if code.startswith("'") else int(code, 0)
