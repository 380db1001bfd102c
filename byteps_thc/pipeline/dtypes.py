"""Of which types gradients may be, and what is said of others: at the start, where a model's parameters are known."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from byteps_thc.errors import ConfigurationError

#: What is compressed.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_averaged(dtype: torch.dtype, elements: int, bypass_elements: int) -> bool:
    """Whether a parameter of that type can be averaged: float64, too, where it is so small that it travels exactly."""
    return dtype in DTYPES or (dtype == torch.float64 and elements < bypass_elements)


def require_dtypes(parameters: Iterable[tuple[str, torch.dtype, int]], bypass_elements: int) -> None:
    """Raise ConfigurationError that names the parameters (name, type of the gradient, elements) of other types."""
    wrong = [
        f"{name} is {dtype} ({elements} elements)".replace("torch.", "")
        for name, dtype, elements in parameters
        if not is_averaged(dtype, elements, bypass_elements)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ConfigurationError(
            f"{', '.join(wrong[:5])}{more}: gradients are averaged in float32, float16 or bfloat16, convert it with "
            f".float(). float64 travels exactly where a parameter has fewer than {bypass_elements} elements "
            "(CompressionPolicy.bypass_elements)"
        )
