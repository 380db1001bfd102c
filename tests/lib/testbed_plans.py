"""Descriptions of testbeds: the examples, and those in tests/lab/testbed/descriptions."""

from pathlib import Path

from thc_lab.testbed.description import Testbed
from thc_lab.testbed.reading import load

_TESTS = Path(__file__).parents[1]
DESCRIPTIONS = _TESTS / "lab/testbed/descriptions"
EXAMPLE = _TESTS.parent / "docs/examples/testbed.example.toml"
RACKS_EXAMPLE = EXAMPLE.with_name("testbed.racks.toml")
#: Names of descriptions that are not in DESCRIPTIONS.
_EXAMPLES = {"example": EXAMPLE, "racks_example": RACKS_EXAMPLE}
NAMES = ("dpdk_switch", "torchrun", "colocated", "racks", "udp_thc_ps", *_EXAMPLES)


def description(name: str) -> Testbed:
    return load(_EXAMPLES.get(name, DESCRIPTIONS / f"{name}.toml"))
