"""Tables: their TableInfos, and the code that applies them and runs the action found."""

from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import BoundArgument, CallKind
from thc_p4_model.compiler.codegen_base import BlockInstance, Constant, ExternInstance, TableInstance, Variable
from thc_p4_model.compiler.codegen_inline import InlineGenerator
from thc_p4_model.compiler.codegen_operators import number_type
from thc_p4_model.compiler.codegen_types import annotation_map
from thc_p4_model.compiler.constants import NotConstant, evaluate
from thc_p4_model.compiler.describe import source_text
from thc_p4_model.compiler.priorities import entry_priorities
from thc_p4_model.interfaces import ActionCall, ActionInfo, EntryInfo, KeyInfo, Param, TableInfo


def local_name(decl: s.Decl) -> str:
    """The name the control plane knows, @name considered."""
    for annotation in decl.annotations:
        if annotation.name == "name" and annotation.args:
            return str(annotation.args[0])
    return decl.name


def full_name(prefix: str, decl: s.Decl) -> str:
    """The name with the instances around it; an @name that starts with a dot is complete by itself."""
    name = local_name(decl)
    return name[1:] if name.startswith(".") else f"{prefix}.{name}" if prefix else name


class TableGenerator(InlineGenerator):
    """Adds tables."""

    def __init__(self) -> None:
        super().__init__()
        self.table_names: dict[str, str] = {}
        """Control-plane name to Python variable."""

    def new_extern(self, call: s.Call, name: str) -> ExternInstance:
        """An extern instance made by a constructor call in a table property."""
        raise NotImplementedError

    # Construction

    def new_table(self, decl: s.TableDecl, owner: BlockInstance) -> TableInstance:
        """Emit the construction of a table."""
        name = full_name(owner.name, decl)
        if name in self.table_names:
            self.fail(decl, f"two tables have the control-plane name {name}")
        variable = self.name(decl.name)
        self.table_names[name] = variable
        with self.bound(owner.bindings):
            info, instances = self._table_info(decl, owner, name)
        extra = "".join(f", {key!r}: {code}" for key, code in instances.items())
        self.setup.append(f"{variable} = new_table({self.add_info(info)}, {{{extra.removeprefix(', ')}}})")
        self.setup.append(f"{variable}_match = {variable}.match")
        return TableInstance(decl, variable, owner)

    def _table_info(self, decl: s.TableDecl, owner: BlockInstance, name: str) -> tuple[TableInfo, dict[str, str]]:
        """The TableInfo without its properties that are extern instances, and their variables."""
        actions = [self._action_info(reference, owner) for reference in decl.actions]
        default = self._default_action(decl, actions)
        properties: dict[str, Any] = {}
        instances: dict[str, str] = {}
        size = 0
        for item in decl.properties:
            if item.name == "size":
                size = int(self._known(item.value, "the size of a table"))
            else:
                self._property(item, name, properties, instances)
        keys = tuple(self._key_info(key) for key in decl.keys)
        info = TableInfo(
            name=name,
            keys=keys,
            actions=tuple(actions),
            default_action=default,
            const_default_action=decl.const_default,
            entries=self._entry_infos(decl),
            const_entries=decl.const_entries,
            size=size,
            properties=properties,
            annotations=annotation_map(decl.annotations),
            location=decl.location,
        )
        return info, instances

    def _known(self, expr: s.Expr, what: str) -> Any:
        try:
            return evaluate(expr, self.constants())
        except NotConstant:
            self.fail(expr, f"{what} must be known at compile time")

    def _property(self, item: s.Property, table: str, properties: dict[str, Any], instances: dict[str, str]) -> None:
        value = item.value
        if isinstance(value, s.Call) and value.target.kind is CallKind.CONSTRUCTOR:
            instances[item.name] = self.new_extern(value, f"{table}.{item.name}").code
            return
        binding = self.bindings.get(value.decl) if isinstance(value, s.Name) else None
        if isinstance(binding, ExternInstance):
            instances[item.name] = binding.code
        else:
            properties[item.name] = self._known(value, f"property {item.name}")

    def _action_info(self, reference: s.ActionRef, owner: BlockInstance) -> ActionInfo:
        decl = reference.decl
        prefix = owner.name if decl in owner.decl.locals else ""
        notes = {note.name for note in reference.annotations}
        params = tuple(
            Param(param.name, "", self.types.info(param.type)) for param in decl.params if not param.direction
        )
        return ActionInfo(
            full_name(prefix, decl),
            params,
            annotation_map(decl.annotations),
            table_only="tableonly" in notes,
            default_only="defaultonly" in notes,
        )

    def _default_action(self, decl: s.TableDecl, actions: list[ActionInfo]) -> ActionCall:
        if decl.default_action is not None:
            return self._action_call(decl, decl.default_action)
        for index, reference in enumerate(decl.actions):
            if reference.name == "NoAction":
                return ActionCall(index, ())
        actions.append(ActionInfo("NoAction", (), {}, default_only=True))
        return ActionCall(len(actions) - 1, ())

    def _action_call(self, decl: s.TableDecl, reference: s.ActionRef) -> ActionCall:
        index = next(position for position, item in enumerate(decl.actions) if item.name == reference.name)
        what = f"an argument of {reference.name}"
        return ActionCall(
            index, tuple(self._known(arg.value, what) for arg in reference.bound if arg.value is not None)
        )

    def _key_info(self, key: s.KeyElement) -> KeyInfo:
        name = next((str(note.args[0]) for note in key.annotations if note.name == "name"), source_text(key.expr))
        type_ = self.type_of(key.expr)
        return KeyInfo(name, key.match_kind, t.width_of(type_), self.types.info(type_))

    def _entry_infos(self, decl: s.TableDecl) -> tuple[EntryInfo, ...]:
        return tuple(
            EntryInfo(
                tuple(self._match(item, key) for item, key in zip(entry.keyset, decl.keys, strict=True)),
                self._action_call(decl, entry.action),
                priority,
                entry.location,
                entry.const,
            )
            for entry, priority in zip(decl.entries, entry_priorities(decl, self._known), strict=True)
        )

    def _match(self, item: s.Expr, key: s.KeyElement) -> Any:
        type_ = number_type(self.type_of(key.expr))
        mask = type_.mask if isinstance(type_, t.BitType) else 1
        what = "a value to match"
        if key.match_kind == "range":
            if isinstance(item, s.DontCare):
                return type_.range if isinstance(type_, t.BitType) else (0, 1)
            if isinstance(item, s.Range):
                return self._known(item.low, what), self._known(item.high, what)
            value = self._known(item, what)
            return value, value
        if isinstance(item, s.Range):
            self.fail(item, f"a range cannot match a key of kind {key.match_kind}")
        if key.match_kind == "exact":
            if isinstance(item, (s.DontCare, s.Mask)):
                self.fail(item, "an exact key needs one value")
            return self._known(item, what)
        if isinstance(item, s.DontCare):
            return (0, 0)
        if isinstance(item, s.Mask):
            value, given = self._known(item.value, what), self._known(item.mask, "a mask")
        else:
            value, given = self._known(item, what), mask
        if key.match_kind == "lpm":
            return value, self._prefix_length(item, given, mask)
        return value, given

    def _prefix_length(self, item: s.Expr, given: int, mask: int) -> int:
        length = given.bit_count()
        width = mask.bit_length()
        if given != mask ^ (mask >> length) or given >> width:
            self.fail(item, f"the mask {given:#x} is no prefix")
        return length

    # Application

    def applied_table(self, call: s.Call) -> None:
        """Emit the application of a table whose result is not used."""
        self._apply(call)

    def applied(self, expr: s.Member) -> str:
        """Code for `table.apply().hit` and its like."""
        if not isinstance(expr.base, s.Call):
            self.fail(expr, "the result of apply() can only be used at once")
        index, hit = self._apply(expr.base)
        match expr.name:
            case "hit":
                return hit
            case "miss":
                return f"(not {hit})"
        return index

    def _apply(self, call: s.Call) -> tuple[str, str]:
        """Emit the look-up and the action; gives the variables of the action's index and of hit."""
        base = call.target.base
        instance = self.bindings.get(base.decl) if isinstance(base, s.Name) else None
        if not isinstance(instance, TableInstance):
            self.fail(call, "which table is applied must be known at compile time")
        keys = self.values([key.expr for key in instance.decl.keys])
        index, args, hit = self.name("action"), self.name("args"), self.name("hit")
        self.emit(f"{index}, {args}, {hit} = {instance.code}_match({', '.join(keys)})")
        word = "if"
        for number, reference in enumerate(instance.decl.actions):
            with self.captured() as lines, self.indented():
                self._run_action(reference, args)
            if any(line.strip() != "pass" for line in lines):
                self.emit(f"{word} {index} == {number}:")
                self.lines.extend(lines)
                word = "elif"
        return index, hit

    def _run_action(self, reference: s.ActionRef, args: str) -> None:
        decl = reference.decl
        plain = [param for param in decl.params if not param.direction]
        data: dict[s.Node, Any] = {param: Variable(self.name(param.name)) for param in plain}
        if plain and decl.body.statements:
            targets = ", ".join(variable.code for variable in data.values())
            self.emit(f"{targets}{',' if len(plain) == 1 else ''} = {args}")
        given = {bound.param: bound for bound in reference.bound}
        directed: list[BoundArgument] = [given[param] for param in decl.params if param.direction]
        with self.bound(data):
            self.inline_action(decl, directed)

    def switch_on_action(self, stmt: s.Switch) -> None:
        """Emit a switch on the action a table ran."""
        subject = stmt.subject
        assert isinstance(subject, s.Member)
        assert stmt.table is not None
        index = self.applied(subject)
        numbers = {reference.name: number for number, reference in enumerate(stmt.table.actions)}
        labels: list[str] = []
        word = "if"
        for case in stmt.cases:
            if case.label is not None:
                assert isinstance(case.label, s.Name)
                labels.append(f"{index} == {numbers[case.label.name]}")
            if case.block is None:
                continue
            head = (
                f"{word} {' or '.join(labels)}:"
                if case.label is not None
                else "else:"
                if word == "elif"
                else "if True:"
            )
            self.emit(head)
            with self.indented():
                self.body(case.block)
            labels, word = [], "elif"


def constant_binding(value: Any) -> Any:
    """A value as a binding: instances as they are, the rest as a Constant."""
    return value if isinstance(value, (ExternInstance, BlockInstance)) else Constant(value)
