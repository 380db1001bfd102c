"""Of which types gradients may be, and what is said of others: at the start, where a model's parameters are known.

And averages in these types.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.errors import ConfigurationError

#: What is compressed.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def saturated(average: Tensor, dtype: torch.dtype) -> Tensor:
    """Return averages in another type, as kernels write them: finite ones stay finite.

    The average of float16 gradients is in the range of float16, and only the error of codes leads beyond it.
    """
    if dtype == torch.float16 and average.dtype != dtype:
        largest, average = torch.finfo(dtype).max, average.float()  # which bfloat16 does not have
        average = torch.where(average.isinf(), average, average.clamp(-largest, largest))
    return average.to(dtype)


def is_averaged(name: str, dtype: torch.dtype, elements: int, policy: CompressionPolicy) -> bool:
    """Whether a parameter of that type can be averaged: float64, too, where it travels exactly."""
    return dtype in DTYPES or (dtype == torch.float64 and policy.travels_exactly(name, elements))


def require_dtypes(parameters: Iterable[tuple[str, torch.dtype, int]], policy: CompressionPolicy) -> None:
    """Raise ConfigurationError that names the parameters (name, type of the gradient, elements) of other types."""
    wrong = [
        f"{name} is {dtype} ({elements} elements)".replace("torch.", "")
        for name, dtype, elements in parameters
        if not is_averaged(name, dtype, elements, policy)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ConfigurationError(
            f"{', '.join(wrong[:5])}{more}: gradients are averaged in float32, float16 or bfloat16, convert it with "
            f".float(). float64 travels exactly where a parameter has fewer than {policy.bypass_elements} elements "
            "(CompressionPolicy.bypass_elements) or is named in CompressionPolicy.exclude"
        )
