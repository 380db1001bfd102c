"""Names of parameters: as BytePS takes them, with its errors and a few more."""

import pytest
import torch

from byteps_thc._base.errors import ConfigurationError
from byteps_thc.torch.optimizer.place import name_parameters


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def test_order_is_that_of_the_names_whatever_the_groups(model):
    groups = [{"params": model[1].parameters(), "lr": 0.1}, {"params": model[0].parameters()}]
    named = name_parameters(torch.optim.SGD(groups, lr=1.0), model.named_parameters())
    assert [(p.name, p.index) for p in named] == [("0.weight", 0), ("0.bias", 1), ("1.weight", 2), ("1.bias", 3)]
    assert named[2].tensor is model[1].weight


def test_frozen_parameters_and_names_that_are_not_trained_are_left_out(model):
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight, model[1].weight], lr=1.0)
    assert [p.name for p in name_parameters(optimizer, model.named_parameters())] == ["1.weight"]


def test_names_without_names_differ_between_groups(model):
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=1.0)
    assert [p.name for p in name_parameters(optimizer, None)] == [f"push_pull.noname.{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: [p for _, p in named], r"tuples \(name, parameter\): pass model.named_parameters"),
        (lambda named: [(name, 1.0) for name, _ in named], "torch.Tensor"),
        (lambda named: [("same", p) for _, p in named], "these are not: same"),
        (lambda named: [*named, ("again", named[0][1])], "two names"),
        (lambda named: named[1:], r"lacks 1 .*\[3, 4\]"),
    ],
)
def test_mistakes_are_named(change, message, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ConfigurationError, match=message):
        name_parameters(optimizer, change(list(model.named_parameters())))
