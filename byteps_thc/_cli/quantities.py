"""Numbers with units, as people write them: 7B parameters, 100 Mb/s."""

import re

from byteps_thc._base.errors import ConfigurationError

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MOST_PARAMETERS = 10**14
#: Units of shown times, and their number in a second.
_SECONDS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))


def parse_parameters(text: str) -> int:
    """Read 25M, 1.5B, 125000, 1e9; ConfigurationError for anything else, less than one, or more than any model has."""
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d{1,2})?)([kMBT]?)", text)
    if not match or (value := float(match[1]) * _PREFIXES[match[2]]) < 1:
        raise ConfigurationError(f"--parameters must be a number such as 25M, 7B or 1e9, not {text!r}")
    if value > _MOST_PARAMETERS:
        raise ConfigurationError(f"--parameters must be at most {show_parameters(_MOST_PARAMETERS)}, not {text!r}")
    return round(value)


def parse_bandwidth_bps(text: str) -> float:
    """Read 100M, 2.5G, 10Gb/s as bits per second; ConfigurationError for anything else."""
    match = re.fullmatch(r"(\d+\.?\d*)([kMGT])(b/s|bit/s|bps)?", text)
    if not match or not (value := float(match[1]) * _PREFIXES[match[2]]):
        raise ConfigurationError(f"--bandwidth must be bits per second such as 100M or 10G, not {text!r}")
    return value


def show_bandwidth(bps: float) -> str:
    """10 Gb/s."""
    return f"{bps / 1e9:.3g} Gb/s" if bps >= 1e9 else f"{bps / 1e6:.3g} Mb/s"


def show_parameters(count: int) -> str:
    """7 B."""
    for prefix in ("T", "B", "M", "k"):
        if count >= _PREFIXES[prefix]:
            return f"{count / _PREFIXES[prefix]:g} {prefix}"
    return str(count)


def show_seconds(seconds: float) -> str:
    """12.3 ms; whole seconds from 1000 on."""
    if seconds >= 999.5:
        return f"{seconds:.0f} s"
    # Just below the next unit it would be shown as 1e+03 of this one.
    unit, per_s = next(((unit, per_s) for unit, per_s in _SECONDS if seconds * per_s >= 0.9995), _SECONDS[-1])
    return f"{seconds * per_s:.3g} {unit}"
