"""Match-action tables: entries, defaults and lookups.

Every table answers from a dictionary of the keys it saw; a key not seen yet is looked up in the entries. A hot table
thus costs one dictionary access per packet for all match kinds. Changes empty the dictionary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thc_p4_model.errors import ControlError, resolve
from thc_p4_model.interfaces import ActionCall, KeyInfo, P4Error, TableInfo
from thc_p4_model.match import SUPPORTED, MatchKey, check_value, matcher, normalize, prefix_mask

Result = tuple[int, tuple[Any, ...], bool]
"""Index of the action, its arguments, hit."""

Identity = tuple[MatchKey, int]
"""Match and priority."""

MAX_REMEMBERED = 1 << 16  # keys; a scan over more would otherwise grow without end


@dataclass(eq=False)
class Entry:
    """One entry. `priority` is 0 in tables that have none; the smallest wins."""

    match: MatchKey
    priority: int
    result: Result
    matches: Callable[[tuple[Any, ...]], bool]
    const: bool = False
    packets: int = 0
    bytes: int = 0


class _Remembered(dict[Any, Result]):
    """Results of seen keys; finds new keys in the table."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[Any], Result]) -> None:
        self._find = find

    def __missing__(self, key: Any) -> Result:
        if len(self) >= MAX_REMEMBERED:
            self.clear()
        result = self[key] = self._find(key)
        return result


class Table:
    """A table of one switch or pipe; `match` is for generated code, everything else for the control plane."""

    match: Callable[..., Result]

    def __init__(self, info: TableInfo, default_size: int) -> None:
        self.info = info
        self._check(info)
        self.prioritized = any(key.match_kind not in ("exact", "lpm") for key in info.keys) or (
            sum(key.match_kind == "lpm" for key in info.keys) > 1
        )
        self.size = max(info.size or default_size, len(info.entries))
        self._entries: dict[Identity, Entry] = {}
        self._remembered = _Remembered(self._find)
        self._single = len(info.keys) == 1
        self._default = info.default_action
        self._miss: Result = (self._default.index, self._default.args, False)
        self._order: list[Entry] = []
        self._prefixes: list[int] = []
        for constant in info.entries:
            match = tuple(self._constant(key, item) for key, item in zip(info.keys, constant.match, strict=True))
            identity = match, constant.priority if self.prioritized else 0
            if identity in self._entries:
                raise P4Error(constant.location, f"table {info.name} has an entry with this key already")
            self._insert(*identity, constant.action, constant.const)
        self._changed()
        remembered = self._remembered
        if self._single:
            self.match = remembered.__getitem__
        else:
            self.match = lambda *keys: remembered[keys]

    @staticmethod
    def _check(info: TableInfo) -> None:
        for key in info.keys:
            if key.match_kind not in SUPPORTED:
                raise P4Error(info.location, f"table {info.name}: match kind {key.match_kind!r} is not supported")
        if info.properties.get("implementation") is not None:
            raise P4Error(info.location, f"table {info.name}: action profiles and selectors are not supported")

    @staticmethod
    def _constant(key: KeyInfo, item: Any) -> Any:
        if key.match_kind in ("exact", "range"):
            return item
        value, second = item
        return value & (prefix_mask(key.width, second) if key.match_kind == "lpm" else second), second

    # Lookup.

    def _find(self, key: Any) -> Result:
        entry = self.find_entry((key,) if self._single else key)
        return entry.result if entry is not None else self._miss

    def find_entry(self, keys: tuple[Any, ...]) -> Entry | None:
        """The entry a packet with these keys hits."""
        if self.prioritized:
            return next((entry for entry in self._order if entry.matches(keys)), None)
        if not self.info.keys:
            return None
        for length in self._prefixes:
            entry = self._entries.get((self._lookup_key(keys, length), 0))
            if entry is not None:
                return entry
        return None

    def _lookup_key(self, keys: tuple[Any, ...], length: int) -> MatchKey:
        return tuple(
            (value & prefix_mask(key.width, length), length) if key.match_kind == "lpm" else value
            for key, value in zip(self.info.keys, keys, strict=True)
        )

    def _changed(self) -> None:
        """Update the lookup structures from the entries."""
        if self.prioritized:
            self._order = sorted(self._entries.values(), key=lambda entry: entry.priority)
        lpm = next((place for place, key in enumerate(self.info.keys) if key.match_kind == "lpm"), None)
        if lpm is None:
            self._prefixes = [0]
        else:
            self._prefixes = sorted({entry.match[lpm][1] for entry in self._entries.values()}, reverse=True)
        self._remembered.clear()

    # Control plane.

    def add(
        self,
        match: Mapping[str, Any] | Sequence[Any],
        action: str,
        params: Mapping[str, Any] | Sequence[Any] = (),
        priority: int | None = None,
    ) -> None:
        """Add an entry. Raises ControlError if it exists, the table is full or constant, or values do not fit."""
        self._mutable()
        normalized = normalize(self.info.keys, match)
        identity = (normalized, self._priority(priority))
        if identity in self._entries:
            raise ControlError(f"table {self.info.name} has an entry for {match} already; modify or delete it")
        if len(self._entries) >= self.size:
            raise ControlError(f"table {self.info.name} is full: it has {self.size} entries")
        self._insert(*identity, self.action_call(action, params))
        self._changed()

    def modify(
        self,
        match: Mapping[str, Any] | Sequence[Any],
        action: str,
        params: Mapping[str, Any] | Sequence[Any] = (),
        priority: int | None = None,
    ) -> None:
        """Give an entry another action or other arguments."""
        self._mutable()
        identity = self._identify_mutable(match, priority)
        self._insert(*identity, self.action_call(action, params))
        self._changed()

    def delete(self, match: Mapping[str, Any] | Sequence[Any], priority: int | None = None) -> None:
        """Remove an entry. The priority is optional if the match is unique."""
        self._mutable()
        del self._entries[self._identify_mutable(match, priority)]
        self._changed()

    def clear(self) -> None:
        """Remove all entries but const ones of the program; the default action stays."""
        self._mutable()
        self._entries = {identity: entry for identity, entry in self._entries.items() if entry.const}
        self._changed()

    def set_default(self, action: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> None:
        """The action on a miss."""
        if self.info.const_default_action:
            raise ControlError(f"the default action of table {self.info.name} is constant")
        self._set_default(self.action_call(action, params, default=True))

    def reset_default(self) -> None:
        """Back to the default action of the program."""
        self._set_default(self.info.default_action)

    def _set_default(self, call: ActionCall) -> None:
        self._default = call
        self._miss = (call.index, call.args, False)
        self._changed()

    def entries(self) -> list[Entry]:
        """All entries, in the order in which they match where that is defined."""
        return self._order if self.prioritized else list(self._entries.values())

    def action_name(self, index: int) -> str:
        """Control-plane name of an action."""
        return self.info.actions[index].name

    def action_call(self, action: str, params: Mapping[str, Any] | Sequence[Any], default: bool = False) -> ActionCall:
        """An action of this table with checked arguments, given by name or in order."""
        names = [info.name for info in self.info.actions]
        index = names.index(resolve(action, names, f"action of table {self.info.name}"))
        info = self.info.actions[index]
        if info.table_only if default else info.default_only:
            raise ControlError(f"action {info.name} is {'not for defaults' if default else 'for the default only'}")
        expected = [param.name for param in info.params]
        if isinstance(params, Mapping):
            if set(params) != set(expected):
                raise ControlError(f"action {info.name} takes {expected or 'no parameters'}, not {sorted(params)}")
            params = [params[name] for name in expected]
        if len(params) != len(expected):
            raise ControlError(f"action {info.name} takes {expected or 'no parameters'}, not {list(params)}")
        args = tuple(
            check_value(f"parameter {param.name} of {info.name}", param.type, value)
            for param, value in zip(info.params, params, strict=True)
        )
        return ActionCall(index, args)

    def _insert(self, match: MatchKey, priority: int, call: ActionCall, const: bool = False) -> None:
        result = (call.index, call.args, True)
        self._entries[match, priority] = Entry(match, priority, result, matcher(self.info.keys, match), const)

    def _identify_mutable(self, match: Mapping[str, Any] | Sequence[Any], priority: int | None) -> Identity:
        identity = self._identify(match, priority)
        if self._entries[identity].const:
            raise ControlError(f"the entry for {match} of table {self.info.name} is constant")
        return identity

    def _identify(self, match: Mapping[str, Any] | Sequence[Any], priority: int | None) -> Identity:
        normalized = normalize(self.info.keys, match)
        same = [identity for identity in self._entries if identity[0] == normalized]
        found = [identity for identity in same if not self.prioritized or priority in (None, identity[1])]
        if len(found) != 1:
            reason = "no entry" if not found else "several priorities"
            raise ControlError(f"table {self.info.name} has {reason} for {match}")
        return found[0]

    def _priority(self, priority: int | None) -> int:
        if not self.prioritized:
            return 0
        if priority is None:
            raise ControlError(f"table {self.info.name} has ternary or range keys: an entry needs a priority")
        return priority

    def _mutable(self) -> None:
        if self.info.const_entries:
            raise ControlError(f"the entries of table {self.info.name} are constant")
        if not self.info.keys:
            raise ControlError(f"table {self.info.name} has no keys: set its default action")


class CountedTable(Table):
    """A table with direct counters (`hit` is told the entry): slower, as it must know which entry a packet hit."""

    def __init__(self, info: TableInfo, default_size: int, hit: Callable[[Entry], None]) -> None:
        super().__init__(info, default_size)
        self.default_entry = Entry((), 0, self._miss, lambda _: True)

        def match(*keys: Any) -> Result:
            entry = self.find_entry(keys)
            hit(entry or self.default_entry)
            return entry.result if entry is not None else self._miss

        self.match = match
