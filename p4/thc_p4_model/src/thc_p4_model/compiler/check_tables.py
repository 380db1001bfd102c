"""Tables, and the values that entries and selects match keys with."""

from collections.abc import Sequence

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_statements import StatementChecker
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.describe import is_simple_key, same_text
from thc_p4_model.compiler.inference import match_arguments

_KEY_TYPES = (t.BitType, t.EnumType)


def can_be_key(type_: t.Type) -> bool:
    """Whether tables and selects work on values of the type."""
    return isinstance(t.strip(type_), _KEY_TYPES) or type_ in (t.BOOL, t.ERROR)


class TableChecker(StatementChecker):
    """Adds tables."""

    def keyset(self, items: list[s.Expr], types: Sequence[t.Type], node: s.Node) -> list[s.Expr]:
        """Check the values to match keys of the given types; a single `_` stands for all keys."""
        if len(items) == 1 and isinstance(items[0], s.DontCare):
            return [s.DontCare(node.location, type=type_) for type_ in types]
        if len(items) != len(types):
            fail(node, f"{len(items)} values for {len(types)} keys")
        return [self._keyset_item(item, type_) for item, type_ in zip(items, types, strict=True)]

    def _keyset_item(self, item: s.Expr, type_: t.Type) -> s.Expr:
        match item:
            case s.DontCare():
                item.type = type_
            case s.Mask():
                item.value = self.coerce(self.expr(item.value), type_, "a value to match")
                base = type_.base if isinstance(type_, t.EnumType) and type_.base is not None else type_
                item.mask = self.coerce(self.expr(item.mask), base, "a mask")
                item.type = type_
            case s.Range():
                item.low = self.coerce(self.expr(item.low), type_, "a bound")
                item.high = self.coerce(self.expr(item.high), type_, "a bound")
                item.type = type_
            case _:
                return self.coerce(self.expr(item), type_, "a value to match")
        return item

    def table(self, table: s.TableDecl) -> None:
        """Check a table."""
        with self.code_of("table"):
            for key in table.keys:
                key.expr = self.expr(key.expr)
                if not can_be_key(key.expr.type):
                    fail(key, f"a key must be a number, bool or enum, not {key.expr.type}")
                named = any(note.name == "name" for note in key.annotations)
                if not named and not is_simple_key(key.expr):
                    fail(key, "a key that is no field needs a @name")
                if key.match_kind not in self.match_kinds:
                    fail(key, f"unknown match kind {key.match_kind}")
            names: set[str] = set()
            for reference in table.actions:
                if reference.name in names:
                    fail(reference, f"action {reference.name} is listed twice")
                names.add(reference.name)
                self._listed_action(table, reference)
            self._default_action(table)
            if table.entries and not table.keys:
                fail(table, f"table {table.name} has entries but no key")
            for entry in table.entries:
                self._entry(table, entry)
            self._priorities(table)
            for item in table.properties:
                self._property(item)

    def _property(self, item: s.Property) -> None:
        item.value = self.expr(item.value)
        match item.name:
            case "size":
                item.value = self.coerce(item.value, t.BitType(32), "the size of a table")
            case "largest_priority_wins":
                item.value = self.coerce(item.value, t.BOOL, item.name)
            case "priority_delta":
                item.value = self.coerce(item.value, t.INTEGER, item.name)

    def _priorities(self, table: s.TableDecl) -> None:
        """Refuse priorities where they mean nothing, and a list whose first entry alone has none."""
        given = [entry for entry in table.entries if entry.priority is not None]
        if not given:
            return
        if table.const_entries:
            fail(given[0], "entries of a const list match in the order of the list: they cannot have priorities")
        if all(key.match_kind in ("exact", "lpm") for key in table.keys):
            fail(given[0], f"table {table.name} has exact and lpm keys only: its entries cannot have priorities")
        if table.entries[0].priority is None:
            fail(table.entries[0], "the first entry needs a priority if any entry has one")

    def _listed_action(self, table: s.TableDecl, reference: s.ActionRef) -> None:
        decl = self.scope.require(reference.name, reference.location, "action")
        if not isinstance(decl, s.ActionDecl):
            fail(reference, f"{reference.name} is not an action")
        reference.decl = decl
        directed = [param for param in decl.params if param.direction]
        if len(reference.args) != len(directed):
            fail(
                reference,
                f"action {decl.name} of table {table.name} needs {len(directed)} arguments here, for its parameters "
                f"with a direction, not {len(reference.args)}",
            )
        with self.code_of("control"):
            reference.bound = self.bind(decl.name, reference, directed, {}, reference.args)

    def _default_action(self, table: s.TableDecl) -> None:
        if table.default_action is None:
            return
        reference = table.default_action
        self._called_action(table, reference)
        listed = next(item for item in table.actions if item.name == reference.name)
        if any(note.name == "tableonly" for note in listed.annotations):
            fail(reference, f"action {reference.name} is @tableonly: it cannot be the default")

    def _called_action(self, table: s.TableDecl, reference: s.ActionRef) -> None:
        """Check an action with the arguments of its plain parameters; directed ones may be repeated before them."""
        listed = next((item for item in table.actions if item.name == reference.name), None)
        if listed is None:
            fail(reference, f"{reference.name} is not in the list of actions of table {table.name}")
        decl = reference.decl = listed.decl
        plain = [param for param in decl.params if not param.direction]
        args = reference.args
        if len(args) == len(decl.params) != len(plain):
            match_arguments(decl.name, decl.params, args, reference.location)
            self._same_as_listed(table, reference, args[: len(decl.params) - len(plain)], listed)
            args = args[len(decl.params) - len(plain) :]
        reference.bound = self.bind(decl.name, reference, plain, {}, args)
        for bound in reference.bound:
            if bound.value is None:
                fail(reference, f"{reference.name}: {bound.param.name} needs a value")

    def _same_as_listed(
        self, table: s.TableDecl, reference: s.ActionRef, repeated: Sequence[s.Argument], listed: s.ActionRef
    ) -> None:
        for again, first in zip(repeated, listed.args, strict=True):
            if again.value is None or first.value is None or not same_text(again.value, first.value):
                fail(again, f"{reference.name} has other arguments in the list of actions of table {table.name}")

    def _entry(self, table: s.TableDecl, entry: s.Entry) -> None:
        entry.keyset = self.keyset(entry.keyset, [key.expr.type for key in table.keys], entry)
        self._called_action(table, entry.action)
        listed = next(item for item in table.actions if item.name == entry.action.name)
        if any(note.name == "defaultonly" for note in listed.annotations):
            fail(entry.action, f"action {entry.action.name} is @defaultonly: it cannot be in an entry")
        if entry.priority is not None:
            entry.priority = self.coerce(self.expr(entry.priority), t.INTEGER, "a priority")
