"""For training loops without DDP, FSDP or BytePS: averages of named tensors (ThcReducer), replicas made identical."""

import byteps_thc._base.needs_torch  # noqa: F401
from byteps_thc._own_loop.thc_reducer import ThcReducer

__all__ = ["ThcReducer"]
