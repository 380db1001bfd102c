"""Match kinds: the control plane's value for one key, checked, in one form, and compared with a packet's value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import KeyInfo, Kind, TypeInfo

MatchKey = tuple[Any, ...]
"""Of one entry, an item per key: exact: value; lpm: (value, prefix length); ternary, optional: (value, mask);
range: (low, high), inclusive. Values have no bits outside their mask."""

MASKED = ("ternary", "optional")
SUPPORTED = ("exact", "lpm", "range", *MASKED)


def normalize(keys: Sequence[KeyInfo], match: Mapping[str, Any] | Sequence[Any]) -> MatchKey:
    """The control plane's match, by key name or in order, in the form of `MatchKey`.

    A key other than an exact one may be None or absent: it matches everything. A ternary, lpm or range key given as a
    single value matches that value only.
    """
    if isinstance(match, Mapping):
        given = _by_name(keys, match)
    elif len(match) == len(keys):
        given = list(match)
    else:
        raise ControlError(f"{len(match)} keys given for {len(keys)}: {', '.join(key.name for key in keys)}")
    return tuple(normalize_key(key, item) for key, item in zip(keys, given, strict=True))


def _by_name(keys: Sequence[KeyInfo], match: Mapping[str, Any]) -> list[Any]:
    names = [key.name for key in keys]
    given: dict[str, Any] = {}
    for name, item in match.items():
        candidates = [full for full in names if full == name] or [full for full in names if full.endswith(f".{name}")]
        if len(candidates) != 1:
            raise ControlError(f"key {name!r} is {'ambiguous' if candidates else 'not there'}: {', '.join(names)}")
        given[candidates[0]] = item
    return [given.get(name) for name in names]


def normalize_key(key: KeyInfo, item: Any) -> Any:
    """One item of a `MatchKey`."""
    full = (1 << key.width) - 1
    if key.match_kind == "exact":
        if item is None:
            raise ControlError(f"exact key {key.name} needs a value")
        return check_value(f"key {key.name}", key.type, item)
    if item is None:
        return (0, full) if key.match_kind == "range" else (0, 0)
    first, second = item if isinstance(item, tuple) else (item, None)
    what = f"key {key.name}"
    first = check_value(what, key.type, first)
    if key.match_kind == "range":
        second = first if second is None else check_value(what, key.type, second)
        if first > second:
            raise ControlError(f"range of key {key.name} is empty: {first}..{second}")
        return first, second
    if key.match_kind == "lpm":
        length = key.width if second is None else int(second)
        if not 0 <= length <= key.width:
            raise ControlError(f"prefix length {length} of key {key.name} is not within 0..{key.width}")
        return first & prefix_mask(key.width, length), length
    mask = full if second is None else check_value(what, key.type, second)
    if key.match_kind == "optional" and mask not in (0, full):
        raise ControlError(f"optional key {key.name} takes a value or None, not the mask {mask:#x}")
    return first & mask, mask


def check_value(what: str, type_info: TypeInfo, value: Any) -> Any:
    """The value as the program holds one of this type; ControlError when it does not fit."""
    if type_info.kind in (Kind.ENUM, Kind.ERROR):
        if value not in type_info.members.values():
            raise ControlError(f"{what} takes one of {', '.join(type_info.members)}, not {value!r}")
        return value
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ControlError(f"{what} takes an integer, not {value!r}") from None
    if type_info.kind is Kind.BOOL and number in (0, 1):
        return bool(number)
    low = -(1 << (type_info.width - 1)) if type_info.kind is Kind.INT else 0
    if not low <= number < low + (1 << type_info.width):
        raise ControlError(f"{what} is a {type_info.name}, too small for {number:#x}")
    return number


def prefix_mask(width: int, length: int) -> int:
    """A mask of `length` ones before zeros, `width` bits together."""
    return ((1 << length) - 1) << (width - length)


def matcher(keys: Sequence[KeyInfo], match: MatchKey) -> Callable[[tuple[Any, ...]], bool]:
    """Whether a packet's keys, as a tuple, match an entry."""
    exact: list[tuple[int, Any]] = []
    masked: list[tuple[int, int, int]] = []
    ranges: list[tuple[int, int, int]] = []
    for position, (key, item) in enumerate(zip(keys, match, strict=True)):
        if key.match_kind == "exact":
            exact.append((position, item))
        elif key.match_kind == "range":
            ranges.append((position, *item))
        else:
            value, mask = item if key.match_kind != "lpm" else (item[0], prefix_mask(key.width, item[1]))
            if mask:
                masked.append((position, value, mask))

    def matches(values: tuple[Any, ...]) -> bool:
        return (
            all(values[position] == value for position, value in exact)
            and all(values[position] & mask == value for position, value, mask in masked)
            and all(low <= values[position] <= high for position, low, high in ranges)
        )

    return matches
