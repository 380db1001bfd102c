"""Nested values compared to the bit."""

from typing import Any

import torch


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Compare types and values of mappings, lists and tuples all the way down, and tensors by their bits.

    where: a place to name in the error; default: the root.
    """
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        mine, theirs = (tensor.detach().cpu().reshape(-1).view(torch.uint8) for tensor in (one, other))
        assert torch.equal(mine, theirs), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_same(value, other[key], f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where} {number}")
    else:
        assert one == other, where
