"""Hooks end with their optimizer, whose model may live on."""

from typing import Any

import torch
from torch import Tensor, nn

from byteps_thc._net.byteps.process import Claim
from byteps_thc._net.ending import collect_forgotten
from byteps_thc.torch.gradient_reducers import PlainReducer
from byteps_thc.torch.optimizer.distributed_optimizer import GradientHooks
from byteps_thc.torch.optimizer.place import NamedParameter


class Pushed(PlainReducer):
    """Notes the names of pushed parameters."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def push(self, parameter: NamedParameter) -> None:
        self._events.append(parameter.name)

    def close(self) -> None:
        self._events.append("closed")


def hooks_of(tensor: Tensor) -> dict[int, Any]:
    return dict(tensor._post_accumulate_grad_hooks or {})  # type: ignore[attr-defined]


def test_a_forgotten_optimizer_takes_its_hooks_off_the_model() -> None:
    model, events = nn.Linear(3, 2, bias=False), list[str]()
    parameters, claim = [NamedParameter("weight", model.weight, 0)], Claim()
    claim.add(["weight"])
    hooks = GradientHooks(parameters, Pushed(events), claim, 1)  # type: ignore[abstract]
    model(torch.ones(1, 3)).sum().backward()
    assert events == ["weight"]
    assert len(hooks_of(model.weight)) == 1
    del hooks, parameters
    model(torch.ones(1, 3)).sum().backward()
    collect_forgotten()
    assert events == ["weight", "closed"]
    assert hooks_of(model.weight) == {}
    assert not claim.things
