"""Runs a bfloat16 layer of torch, which ends the process where the processor shows AMX and does not let it run."""

from __future__ import annotations

import json


def probe() -> dict[str, object]:
    """{"installed": False}, or {"installed": True} when the layer works."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # torch is there, and something it needs is not
        return {"installed": False}
    torch.nn.Linear(64, 64).bfloat16()(torch.ones(8, 64).bfloat16())
    return {"installed": True}


if __name__ == "__main__":
    print(json.dumps(probe()))
