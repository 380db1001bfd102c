"""Instances of externs, parsers, controls and packages, and the Python functions of the blocks in packages."""

from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind
from thc_p4_model.compiler.codegen_base import (
    BlockInstance,
    Constant,
    ExternInstance,
    FunctionState,
    PackageInstance,
    ReturnTarget,
    Variable,
)
from thc_p4_model.compiler.codegen_parsers import ParserGenerator
from thc_p4_model.compiler.codegen_tables import constant_binding, full_name, local_name
from thc_p4_model.compiler.codegen_types import annotation_map
from thc_p4_model.compiler.constants import NotConstant, evaluate
from thc_p4_model.compiler.walk import walk
from thc_p4_model.interfaces import ExternInfo


class BlockGenerator(ParserGenerator):
    """Adds instances and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.extern_names: dict[str, str] = {}
        """Control-plane name to Python variable."""
        self.named_pipelines: set[s.Call] = set()
        """Constructor calls of packages whose names stand before the names of their blocks."""
        self._action_names: dict[str, s.ActionDecl] = {}
        self._owner: BlockInstance | None = None
        self._direct: dict[tuple[s.Call, BlockInstance | None], BlockInstance] = {}

    # Instances

    def instance(self, decl: s.Instantiation, prefix: str) -> Any:
        """Make a declaration's instance; emits the construction of externs and tables."""
        name = full_name(prefix, decl)
        if isinstance(decl.type, t.ExternType):
            return self._extern(decl.call, name, decl)
        return self._constructed(decl.call, name)

    def _constructed(self, call: s.Call, name: str) -> Any:
        target = call.target
        match target.constructed:
            case t.ExternType():
                return self._extern(call, name, None)
            case t.BlockRef(decl):
                return self.block_instance(decl, name, target.args)
            case t.BlockTypeRef() as package:
                prefix = f"{name}." if call in self.named_pipelines else ""
                args = {
                    arg.param.name: self._constructor_value(arg.value, arg.param, prefix)
                    for arg in target.args
                    if arg.value is not None
                }
                return PackageInstance(package, name, args, call.location)
        raise AssertionError(target)

    def _constructor_value(self, value: s.Expr, param: s.Param, prefix: str = "") -> Any:
        """The value of a constructor argument: an instance or a constant. The prefix is for a new instance's name."""
        if isinstance(value, s.Call) and value.target.kind is CallKind.CONSTRUCTOR:
            named = value.target.decl
            assert named is not None
            name = local_name(named) if isinstance(named, (s.ParserDecl, s.ControlDecl)) else param.name
            return self._constructed(value, prefix + name)
        binding = self.bindings.get(value.decl) if isinstance(value, s.Name) else None
        if isinstance(binding, Constant):
            return binding.value
        if binding is not None:
            return binding
        try:
            return evaluate(value, self.constants())
        except NotConstant:
            self.fail(value, "a constructor's argument must be known at compile time")

    def new_extern(self, call: s.Call, name: str) -> ExternInstance:
        """An extern instance made by a constructor call in a table property."""
        return self._extern(call, name, None)

    def _extern(self, call: s.Call, name: str, decl: s.Instantiation | None) -> ExternInstance:
        type_ = call.target.constructed
        assert isinstance(type_, t.ExternType)
        if name in self.extern_names:
            self.fail(call, f"two externs have the control-plane name {name}")
        codes = [self._extern_constructor_argument(arg, type_.decl.name) for arg in call.target.args]
        info = ExternInfo(
            name=name,
            extern=type_.decl.name,
            type_args=tuple(self.types.info(arg) for arg in type_.args),
            args=(),
            annotations=annotation_map(decl.annotations if decl is not None else []),
            location=call.location,
            abstract={},
        )
        methods = []
        for function in decl.body or [] if decl is not None else []:
            assert isinstance(function, s.FunctionDecl)
            python_name = self.name(f"{local_name(decl)}_{function.name}")  # type: ignore[arg-type]
            self.setup += self.python_function(python_name, function)
            methods.append(f"{function.name!r}: {python_name}")
        variable = self.name(name.rpartition(".")[2])
        self.extern_names[name] = variable
        args = "".join(f"{code}, " for code in codes)
        self.setup.append(f"{variable} = new_extern({self.add_info(info)}, ({args}), {{{', '.join(methods)}}})")
        return ExternInstance(variable, type_, name)

    def _extern_constructor_argument(self, arg: BoundArgument, extern: str) -> str:
        value = self._constructor_value(arg.value, arg.param) if arg.value is not None else None
        if isinstance(value, BlockInstance | PackageInstance):
            self.fail(
                arg.value or arg.param,
                f"argument {arg.param.name} of {extern} is {_called(value)}: externs take numbers, strings and externs",
            )
        return value.code if isinstance(value, ExternInstance) else repr(value)

    def block_instance(self, decl: s.ParserDecl | s.ControlDecl, name: str, args: list[BoundArgument]) -> BlockInstance:
        """An instance of a parser or control, with everything declared in it."""
        bindings: dict[s.Node, Any] = {
            arg.param: constant_binding(self._constructor_value(arg.value, arg.param))
            for arg in args
            if arg.value is not None
        }
        instance = BlockInstance(decl, name, bindings)
        self._cells(instance)
        with self.bound({**self.global_bindings, **bindings}):
            for local in decl.locals:
                made: Any = None
                if isinstance(local, s.ActionDecl):
                    self._action_name(local, name)
                if isinstance(local, s.Instantiation):
                    made = self.instance(local, name)
                elif isinstance(local, s.TableDecl):
                    made = self.new_table(local, instance)
                if made is not None:
                    bindings[local] = self.bindings[local] = made
        return instance

    def _action_name(self, decl: s.ActionDecl, prefix: str) -> None:
        """Refuse a second action of the same control-plane name."""
        name = full_name(prefix, decl)
        other = self._action_names.setdefault(name, decl)
        if other is not decl:
            self.fail(decl, f"the action at {other.location} has the control-plane name {name} too")

    def _cells(self, instance: BlockInstance) -> None:
        """Give the parameters and variables that abstract methods use a variable of the instance."""
        decl = instance.decl
        candidates: set[s.Node] = {*decl.params, *(local for local in decl.locals if isinstance(local, s.VarDecl))}
        for local in decl.locals:
            if not isinstance(local, s.Instantiation):
                continue
            for node in walk(local.body or []):
                if isinstance(node, s.Name) and node.decl in candidates and node.decl not in instance.cells:
                    cell = Variable(self.name(node.name), cell=True)
                    instance.cells[node.decl] = cell
                    self.setup.append(f"{cell.code} = None")
        instance.bindings.update(instance.cells)

    def direct_instance(self, call: s.Call) -> BlockInstance:
        """The nameless instance behind `Type.apply()`, one per call and enclosing instance."""
        key = (call, self._owner)
        if key not in self._direct:
            decl = call.target.decl
            assert isinstance(decl, (s.ParserDecl, s.ControlDecl))
            prefix = self._owner.name if self._owner is not None else ""
            self._direct[key] = self.block_instance(decl, full_name(prefix, decl), [])
        return self._direct[key]

    # Code

    def block_body(self, instance: BlockInstance) -> None:
        """Emit the locals and the body of a parser or control, its parameters bound."""
        saved, self._owner = self._owner, instance
        for local in instance.decl.locals:
            if isinstance(local, s.VarDecl):
                self.declare(local)
        if isinstance(instance.decl, s.ParserDecl):
            self.parser_states(instance)
        else:
            self.body(instance.decl.body)
        self._owner = saved

    def block_function(self, instance: BlockInstance) -> str:
        """Emit, among the set-up, the Python function of a block; gives its name."""
        name = self.name(instance.name)
        self.locations[name] = instance.decl.location
        params: list[str] = []
        outs: list[str] = []
        bindings: dict[s.Node, Any] = {}
        self.function_state, self.indent = FunctionState(), 1
        with self.captured() as lines:
            for param in instance.decl.params:
                variable = self._block_parameter(param, instance, params)
                bindings[param] = variable
                if param.direction in ("out", "inout") and not t.is_object(param.type):
                    outs.append(variable.code)
            self.returns = ReturnTarget(True, outs)
            with self.bound({**self.global_bindings, **instance.bindings, **bindings}):
                with self.captured() as body:
                    self.block_body(instance)
                if self.function_state.exits:
                    self.emit("try:")
                    self.lines.extend("    " + line for line in body)
                    self.emit("except P4Exit: pass")
                else:
                    self.lines.extend(body)
            if outs:
                self.emit(f"return {', '.join(outs)}")
        self.indent = 0
        head = [f"def {name}({', '.join(params)}):"]
        if self.function_state.nonlocals:
            head.append(f"    nonlocal {', '.join(sorted(self.function_state.nonlocals))}")
        self.setup += head + (lines or ["    pass"])
        return name

    def _block_parameter(self, param: s.Param, instance: BlockInstance, params: list[str]) -> Variable:
        cell = instance.cells.get(param)
        plain = self.name(param.name)
        scalar_out = param.direction == "out" and not t.is_object(param.type)
        if not scalar_out:
            params.append(plain)
        if cell is not None:
            self.function_state.nonlocals.add(cell.code)
            self.emit(f"{cell.code} = {self.types.new_code(param.type) if scalar_out else plain}")
            return cell
        if scalar_out:
            self.emit(f"{plain} = {self.types.new_code(param.type)}")
        return Variable(plain)


def _called(instance: BlockInstance | PackageInstance) -> str:
    if isinstance(instance, PackageInstance):
        return f"a package {instance.type}"
    return f"the {'parser' if isinstance(instance.decl, s.ParserDecl) else 'control'} {instance.decl.name}"
