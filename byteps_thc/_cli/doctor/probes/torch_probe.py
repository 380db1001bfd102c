"""Imports torch and says what it was built with."""

from __future__ import annotations

import json


def probe() -> dict[str, object]:
    """{"installed": False}, or what torch has."""
    try:
        import torch
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # torch is there, and something it needs is not
        return {"installed": False}
    distributed = dist.is_available()
    return {
        "installed": True,
        "version": torch.__version__,
        "gloo": distributed and dist.is_gloo_available(),
        "nccl": distributed and dist.is_nccl_available(),
        "built_for_cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


if __name__ == "__main__":
    print(json.dumps(probe()))
