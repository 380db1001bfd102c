"""Baselines in training, as the tests of the front ends run them."""

from __future__ import annotations

from typing import Any

TRAINING = {"lr": 0.1, "momentum": 0.9}
#: as in the table of docs/plugins.md -> name, options, training
SCHEMES: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "NoCompression": ("NoCompression", {}, TRAINING),
    "Fp16": ("Fp16", {}, TRAINING),
    "Bf16": ("Bf16", {}, TRAINING),
    "TopK": ("TopK", {"ratio": 0.1}, TRAINING),
    "Dgc": ("Dgc", {"ratio": 0.1, "momentum": 0.9}, TRAINING | {"momentum": 0.0}),
    "TernGrad": ("TernGrad", {}, {"lr": 0.4, "momentum": 0.0}),
    "Qsgd": ("Qsgd", {}, TRAINING),
    "SignSgd": ("SignSgd", {}, TRAINING),
    "SignSgd majority": ("SignSgd", {"variant": "majority"}, {"lr": 0.003, "momentum": 0.0}),
}
