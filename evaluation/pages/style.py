"""One colour for each scheme, in every plot: Okabe's and Ito's, told apart by the colour-blind, too."""

from collections.abc import Sequence

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE, GREY = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"),
)
#: Styles by the beginning of a scheme's name, the longest that fits: (colour, marker, line).
_STYLES = {
    "fp32": (BLACK, "p", "-"),
    "bf16": (GREY, "s", "-"),
    "THC": (BLUE, "o", "-"),
    "THC, 5 + 5": (BLUE, "o", "-"),
    "THC, 4 + 4": (BLUE, "s", "--"),
    "THC, 5 + 6": (BLUE, "^", ":"),
    "THC, 3 + 3": (SKY, "X", "-"),
    "THC, 2 bits": (GREEN, "^", "-"),
    "THC, 3 bits": (SKY, "s", "-"),
    "THC, 4 bits": (BLUE, "o", "-"),
    "THC, 2 + 2": (GREEN, "^", "-"),
    "THC, 1 + 1": (GREEN, "<", ":"),
    "THC, paper": (SKY, "h", "-"),
    "THC, switch": (SKY, "^", "--"),
    "THC, one server": (SKY, "X", "-"),
    "THC, four colocated servers": (GREEN, "^", "--"),
    "Uniform THC": (SKY, "v", ":"),
    "Uniform THC, no rotation": (RED, "x", "-"),
    "Uniform THC, neither": (ORANGE, "x", "-"),
    "THC, no rotation": (RED, "x", "-"),
    "THC, no clamp": (ORANGE, "v", "-"),
    "THC, independent rounding": (GREEN, "<", "-"),
    "THC, uniform table": (SKY, "v", ":"),
    "THC, blocks": (GREY, "s", "-"),
    "THC, with": (PURPLE, "D", "-"),
    "Algorithm 1": (BLACK, "x", ":"),
    "PowerSGD": (PURPLE, "D", "-"),
    "EDEN": (RED, "P", "-"),
    "DRIVE": (RED, "*", ":"),
    "TopK": (RED, "x", "-"),
    "DGC": (RED, "+", "--"),
    "TernGrad": (ORANGE, "v", "-"),
    "QSGD": (GREEN, "<", "-"),
    "SignSGD": (ORANGE, ">", "--"),
    "MXFP": (YELLOW, "h", "-"),
    "NVFP": (BLACK, "H", "--"),
    "MS-EDEN": (BLACK, "h", ":"),
    "int": (ORANGE, "d", "--"),
    "correlated": (GREEN, "d", ":"),
    "SDP4Bit": (GREY, "d", "--"),
}
#: Settings of one scheme in one plot take turns.
_LINES = ("-", "--", "-.", ":")


def style_of(scheme: str, before: Sequence[str]) -> dict[str, str]:
    """Keywords of matplotlib's plot(). before: schemes that the plot has already."""
    key = _key(scheme)
    color, marker, line = _STYLES[key]
    alike = sum(_key(other) == key for other in before)
    return {"color": color, "marker": marker, "linestyle": _LINES[(_LINES.index(line) + alike) % len(_LINES)]}


def _key(scheme: str) -> str:
    """Raise KeyError for a scheme that has no colour yet."""
    return max((key for key in _STYLES if scheme.startswith(key)), key=len, default=scheme)
