"""Names of residuals: the model's own, whatever wraps it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from byteps_thc.ddp.bucket_buffers import parameter_names


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.zeros(2))


def test_attributes_that_look_like_wrappers_keep_their_names() -> None:
    assert list(parameter_names(Wrapper()).values()) == ["weight", "module.weight", "module.bias"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own imports
def test_compiled_models_and_parts_have_plain_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = list(parameter_names(model).values())
    model[1] = torch.compile(model[1])
    assert list(parameter_names(torch.compile(model)).values()) == names
