"""Plans of the descriptions in tests/lab/testbed/descriptions, and of the example, as they are printed.

`python tests/lib/testbed_plans.py` writes the goldens anew, after a change that is meant: look at `git diff` then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from thc_lab.testbed.description import Testbed
from thc_lab.testbed.kubernetes import manifests
from thc_lab.testbed.plan import plan
from thc_lab.testbed.plan_text import as_json, as_text
from thc_lab.testbed.reading import load
from thc_lab.testbed.slurm import batch_script

_TESTS = Path(__file__).parents[1]
DESCRIPTIONS = _TESTS / "lab/testbed/descriptions"
GOLDENS = _TESTS / "lab/testbed/goldens"
EXAMPLE = _TESTS.parent / "docs/examples/testbed.example.toml"
RACKS_EXAMPLE = EXAMPLE.with_name("testbed.racks.toml")
#: Names of descriptions that are not in DESCRIPTIONS.
_EXAMPLES = {"example": EXAMPLE, "racks_example": RACKS_EXAMPLE}

#: Name of a golden's end -> what writes it.
FORMATS: dict[str, Callable[[Testbed], str]] = {
    "txt": lambda testbed: as_text(plan(testbed)),
    "json": lambda testbed: as_json(plan(testbed)),
    "sbatch": lambda testbed: batch_script(testbed, plan(testbed)),
    "kubernetes.json": lambda testbed: manifests(testbed, plan(testbed)),
}
#: Descriptions, and those whose hosts are no namespaces.
ON_CLUSTERS = ("dpdk_switch", "torchrun", "colocated", "racks")
NAMES = (*ON_CLUSTERS, "udp_thc_ps", *_EXAMPLES)
#: Descriptions and the formats of their goldens.
CASES = [
    *((name, "txt") for name in NAMES),
    *((name, "json") for name in ("dpdk_switch", "racks")),
    *((name, format) for name in ON_CLUSTERS for format in ("sbatch", "kubernetes.json")),
]


def description(name: str) -> Testbed:
    """A description by its file's name; an example, as if it were in /srv with its commands in /opt."""
    if name not in _EXAMPLES:
        return load(DESCRIPTIONS / f"{name}.toml")
    example = load(_EXAMPLES[name])
    training = example.training.model_copy(update={"folder": "/srv/training"})
    return example.model_copy(update={"bin": "/opt/thc/bin", "training": training})


def golden(name: str, format: str) -> Path:
    """File of what a plan is to look like."""
    return GOLDENS / f"{name}.{format}"


def printed(name: str, format: str) -> str:
    """What it looks like."""
    return FORMATS[format](description(name))


def objects(name: str) -> list[dict[str, object]]:
    """Kubernetes' objects of a description."""
    items: list[dict[str, object]] = json.loads(printed(name, "kubernetes.json"))["items"]
    return items


if __name__ == "__main__":
    GOLDENS.mkdir(exist_ok=True)
    for file in GOLDENS.iterdir():
        file.unlink()
    for case in CASES:
        golden(*case).write_text(printed(*case), encoding="utf-8")
