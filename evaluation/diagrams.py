"""Draw the diagrams of README and guide, docs/diagrams/*.svg: python evaluation/diagrams.py.

They are no wider than a phone can show legibly, and have a ground of their own for light and dark pages.
"""

import tomllib
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/diagrams"
WIDTH = 520
INK, MUTED, PLAIN, WORKER, SERVER = "#1a1a1a", "#555555", "#ffffff", "#dcebf7", "#fdeccb"
#: THC's colour in the evaluation's plots.
BLUE = "#0072B2"
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" \
role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="13">
<title>{title}</title>
{heads}
<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>
"""
_ARROW_HEAD = """<marker id="head-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>"""


class Drawing:
    """Shapes, in user units from the upper left corner."""

    def __init__(self, title: str, height: int) -> None:
        heads = "".join(_ARROW_HEAD.format(name=color[1:], color=color) for color in (INK, BLUE))
        self._parts = [_HEAD.format(width=WIDTH, height=height, title=escape(title), heads=heads)]

    def box(self, x: float, y: float, width: float, height: float, text: str = "", fill: str = PLAIN) -> None:
        """Draw a box with lines of text in its middle."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="{MUTED}"/>\n'
        )
        lines = text.splitlines()
        for i, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 17 * (i - (len(lines) - 1) / 2), line)

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "middle", color: str = INK, bold: bool = False
    ) -> None:
        """Write a line; y: of its feet."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(text)}</text>\n'
        )

    def arrow(self, *points: tuple[float, float], color: str = INK, both: bool = False) -> None:
        """Draw an arrow along points; both: with a head at either end."""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        head = f"url(#head-{color[1:]})"
        start = f' marker-start="{head}"' if both else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" marker-end="{head}"{start}/>\n'
        )

    def __str__(self) -> str:
        return "".join([*self._parts, "</svg>\n"])


def one_round() -> Drawing:
    """A gradient's way through thc-ps or a switch."""
    drawing = Drawing("What worker and server do to a gradient in a round", 580)
    drawing.text(130, 26, "every worker", bold=True)
    drawing.text(410, 26, "thc-ps or a switch", bold=True)
    steps = [
        (40, "gradient"),
        (108, "rotate: random signs,\nHadamard"),
        (176, "norm of each block"),
        (260, "clamp, quantize at random"),
        (428, "dequantize, rotate back"),
        (512, "average gradient, the same\nto the bit on all workers"),
    ]
    for y, text in steps:
        drawing.box(20, y, 220, 46, text, WORKER)
    for (y, _), (below, _) in pairwise(steps):
        if y != 260:
            drawing.arrow((130, y + 46), (130, below))
    drawing.box(320, 190, 180, 64, "maximum of the\nworkers' norms", SERVER)
    drawing.box(320, 318, 180, 100, "look up each code,\nadd to the slot, until\nall n workers are in", SERVER)
    drawing.arrow((240, 199), (320, 199), color=BLUE)
    drawing.text(280, 193, "norms", color=BLUE)
    drawing.arrow((320, 240), (280, 240), (280, 283), (240, 283), color=BLUE)
    drawing.text(285, 276, "maxima", anchor="start", color=BLUE)
    drawing.arrow((130, 306), (130, 340), (320, 340), color=BLUE)
    drawing.text(225, 334, "4-bit codes", color=BLUE)
    drawing.arrow((320, 396), (185, 396), (185, 428), color=BLUE)
    drawing.text(253, 390, "8-bit sums", color=BLUE)
    return drawing


def two_levels() -> Drawing:
    """Nodes whose ranks average exactly, and compressed with other nodes' ranks."""
    drawing = Drawing("Two nodes of two ranks: exact within a node, compressed between nodes", 330)
    for node, y in enumerate((20, 210)):
        drawing.box(20, y, 480, 100)
        drawing.text(34, y + 22, f"node {node}", anchor="start", bold=True)
        for shard, x in enumerate((40, 330)):
            drawing.box(x, y + 36, 150, 50, f"rank {2 * node + shard}\nshard {shard}", WORKER)
        drawing.arrow((190, y + 61), (330, y + 61), both=True)
        drawing.text(260, y + 54, "1, 3: exact")
    for shard, x in enumerate((115, 405)):
        drawing.arrow((x, 106), (x, 246), color=BLUE, both=True)
        anchor, at = ("start", x + 10) if shard == 0 else ("end", x - 10)
        drawing.text(at, 162, "2: THC, over the", anchor=anchor, color=BLUE)
        drawing.text(at, 179, "slow network", anchor=anchor, color=BLUE)
    return drawing


def racks() -> Drawing:
    """A root above two racks, each with a server of its own."""
    drawing = Drawing("A thc-ps in each rack, and one above them", 340)
    drawing.box(170, 16, 180, 50, "thc-ps, the root\nadds the racks' sums", SERVER)
    for rack, x in enumerate((14, 268)):
        middle = x + 119
        drawing.box(x, 146, 238, 180)
        drawing.text(x + 12, 316, f"rack {rack}", anchor="start", bold=True)
        drawing.box(middle - 85, 158, 170, 44, f"thc-ps of rack {rack}\nadds 4 workers", SERVER)
        for i in range(4):
            left = x + 11 + 55 * i
            drawing.box(left, 258, 50, 36, str(4 * rack + i), WORKER)
            drawing.arrow((left + 25, 258), (middle - 60 + 40 * i, 202), color=BLUE)
        drawing.text(x + 226, 316, "workers", anchor="end", color=MUTED)
        drawing.arrow((middle, 158), (220 + 80 * rack, 66), color=BLUE, both=True)
    drawing.text(150, 96, "for four packets", anchor="end", color=BLUE)
    drawing.text(150, 113, "one up, one down", anchor="end", color=BLUE)
    drawing.text(260, 121, "thin links", color=MUTED)
    return drawing


def header() -> Drawing:
    """The 32 bytes before every payload, four in a row."""
    fields = tomllib.loads((ROOT / "byteps_thc/_base/wire/wire.toml").read_text(encoding="utf-8"))["header"]
    bit, row_height, left, top = 15, 38, 34, 44
    drawing = Drawing(
        "Header of every packet, four bytes in a row", top + row_height * sum(f["bits"] for f in fields) // 32 + 14
    )
    drawing.text(2, 34, "byte", anchor="start", color=MUTED)
    for byte in range(4):
        drawing.text(left + bit * 8 * (byte + 0.5), 34, f"+{byte}", color=MUTED)
    offset = 0
    for entry in fields:
        row, column = divmod(offset, 32)
        y = top + row_height * row
        if column == 0:
            drawing.text(left - 8, y + 24, str(offset // 8), anchor="end", color=MUTED)
        fill = SERVER if entry["name"].startswith("switch_") else WORKER
        drawing.box(left + bit * column, y, bit * entry["bits"], row_height, entry["name"], fill)
        offset += entry["bits"]
    return drawing


DIAGRAMS = {"round": one_round, "two_levels": two_levels, "racks": racks, "header": header}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
