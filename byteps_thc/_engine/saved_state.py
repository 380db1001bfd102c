"""Checks a state before it is loaded: undamaged, and with these parameters.

A state has plain values, and perhaps "residuals": arrays or tensors by parameter name. "checksums" has each residual's
CRC-32 by "residuals.NAME", and the plain values' common one by "values".
"""

import json
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from byteps_thc._base.arrays import F32, residual_of_tensor
from byteps_thc._base.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

#: Counters, settings, and mappings such as "residuals".
StateDict = dict[str, Any]
State = Mapping[str, Any]

VERSION = 3
#: Bound of all residuals: gradients of larger norms leave none (compressor.LARGEST_NORM).
LARGEST_RESIDUAL = 2.0**96
#: A scope that names a shard; the user's prefix may come first.
_SHARD = re.compile(r"(?:.*\.)?shard\d+of(\d+)")
_CHECKSUMS = "checksums"
_AGAIN = "load the checkpoint again, or an earlier one"


def sealed(state: State) -> StateDict:
    return {**state, _CHECKSUMS: _checksums(state)}


def with_values(state: State, **values: object) -> StateDict:
    """Return a sealed state with further plain values; its arrays, which may be large, are not summed again."""
    changed = {**state, **values}
    return {**changed, _CHECKSUMS: {**state[_CHECKSUMS], **_checksum_of_values(changed)}}


def unsealed(state: State) -> StateDict:
    return {key: value for key, value in state.items() if key != _CHECKSUMS}


def require_sound(state: object, sizes: Mapping[str, int] | None = None, *, complete: bool = True) -> None:
    """Raise ConfigurationError, naming the entry, unless `state` fits the parameters.

    sizes: elements of the known parameters; None: none are known. complete: no others exist.
    """
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"the state is a {type(state).__name__}: pass the result of state_dict()")
    for name, value in _residuals(state).items():
        size = residual_array(name, value).size
        if sizes is None or (not complete and name not in sizes):
            continue
        if name not in sizes:
            raise ConfigurationError(
                f"the state's residuals have parameter {name!r}, which is unknown here: load the checkpoint of this "
                "model"
            )
        require_size(name, size, sizes[name])


def shards_of(scope: object) -> int | None:
    """Return the number of shards in a state's scope; None: its residuals are whole."""
    shard = _SHARD.fullmatch(scope) if isinstance(scope, str) else None
    return None if shard is None else int(shard[1])


def require_scope(state: object, scope: str | None) -> None:
    """Raise ConfigurationError unless a state belongs to the ranks that average this shard; None: whole parameters."""
    if not isinstance(state, Mapping) or (theirs := state.get("scope")) == scope:
        return
    if scope is None:
        if shards_of(theirs) is None:
            return
        hint = (
            "it was saved by ranks that average in two levels, whose residuals are of shards: nodes of as many ranks "
            'load it (levels="auto"), or a mesh of them (levels=(mesh, dim))'
        )
    elif theirs is None:
        hint = 'it was saved by ranks that average in one level, whose residuals are whole: levels="flat" loads it'
    else:
        hint = "every rank loads its own, on nodes of as many ranks as those that saved it (levels)"
    raise ConfigurationError(f"state does not fit: its scope is {theirs!r}, here it is {scope!r}: {hint}")


def require_as_saved(state: State) -> None:
    """Raise ConfigurationError, naming the entry, if a valid state does not match its checksums."""
    saved, now = state.get(_CHECKSUMS), _checksums(state)
    if not isinstance(saved, Mapping):
        raise ConfigurationError(f"state is damaged: its checksums are missing; {_AGAIN}")
    for entry in sorted(saved.keys() | now.keys(), key=str):
        if entry not in now:
            raise ConfigurationError(f"state is damaged: {entry} is missing; {_AGAIN}")
        if saved.get(entry) != now[entry]:
            what = "version, counters or settings are" if entry == "values" else f"{entry} is"
            raise ConfigurationError(f"state is damaged: {what} not as saved (another checksum); {_AGAIN}")


def require_size(name: str, saved: int, size: int) -> None:
    if saved != size:
        raise ConfigurationError(
            f"the residual of parameter {name!r} has {saved} elements and its gradient {size}: load the checkpoint of "
            "this model, and pass ThcState(model=...) if parameters are counted in another order"
        )


def residual_array(name: object, value: object) -> F32:
    """Return a saved residual as an array, not copied; ConfigurationError if it is none."""
    array = _array(value)
    what = f"state is damaged: residuals of {name!r} is not a finite 1-D float32 tensor"
    known = isinstance(array, np.ndarray) and array.dtype == np.float32
    if not isinstance(name, str) or array is None or not known or array.ndim != 1:
        raise ConfigurationError(f"{what}; {_AGAIN}")
    if array.size and not max(float(array.max()), -float(array.min())) <= LARGEST_RESIDUAL:  # NaN neither
        raise ConfigurationError(f"{what}, of numbers up to 2^96; {_AGAIN}")
    return array


def _residuals(state: State) -> State:
    residuals: State = state.get("residuals", {})
    if not isinstance(residuals, Mapping):
        raise ConfigurationError(
            f"state is damaged: its residuals are not a mapping from parameter names to tensors; {_AGAIN}"
        )
    return residuals


def _checksums(state: State) -> dict[str, int]:
    sums = _checksum_of_values(state)
    for name, value in _residuals(state).items():
        # Not residual_array(): a state that cannot be loaded can still be saved.
        sums[f"residuals.{name}"] = zlib.crc32(np.ascontiguousarray(_array(value)).data)
    return sums


def _checksum_of_values(state: State) -> dict[str, int]:
    values = {key: value for key, value in state.items() if key not in ("residuals", _CHECKSUMS)}
    # As JSON, like byteps_thc.checkpoint: a tuple is a list there.
    return {"values": zlib.crc32(json.dumps(values, sort_keys=True, default=repr).encode())}


def _array(value: object) -> F32 | None:
    try:
        is_array = isinstance(value, np.ndarray) or not hasattr(value, "detach")
        return cast(F32, value) if is_array else residual_of_tensor(cast("Tensor", value))
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):  # no tensor, or one without such elements
        return None
