"""Residuals follow their parameters from layout to layout, and the scale of a GradScaler."""

from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.adding.residuals import Residuals
from byteps_thc._engine.engine import Engine, ParameterSlice
from byteps_thc._engine.steps import LossScaling

A_THEN_B = (ParameterSlice("a", 0, 2), ParameterSlice("b", 2, 5))
B_THEN_A = (ParameterSlice("b", 0, 3), ParameterSlice("a", 4, 6))


def test_residuals_move_to_another_layout_and_back() -> None:
    residuals = Residuals()
    first = residuals.of(5, A_THEN_B)
    first[:] = torch.arange(5)
    second = residuals.of(6, B_THEN_A)
    assert second.tolist() == [2, 3, 4, 0, 0, 1]
    second *= 10
    assert residuals.of(5, A_THEN_B).tolist() == [0, 10, 20, 30, 40]
    assert {name: part.tolist() for name, part in residuals.state().items()} == {"a": [0, 10], "b": [20, 30, 40]}


def test_a_parameter_that_leaves_takes_its_part_only() -> None:
    residuals = Residuals()
    residuals.of(5, A_THEN_B)[:] = torch.arange(5)
    assert residuals.of(3, (ParameterSlice("b", 0, 3),)).tolist() == [2, 3, 4]
    assert residuals.state()["a"].tolist() == [0, 1]


def test_state_is_a_copy_and_comes_back() -> None:
    residuals = Residuals()
    flat = residuals.of(5, A_THEN_B)
    flat[:] = torch.arange(5)
    assert residuals.energy() == pytest.approx(30)
    state = residuals.state()
    flat.zero_()
    loaded = Residuals()
    loaded.load(state)
    state["a"].fill_(7)
    loaded.scale(2)
    assert loaded.of(6, B_THEN_A).tolist() == [4, 6, 8, 0, 0, 2]


def test_wrong_states_are_refused_and_change_nothing() -> None:
    residuals = Residuals()
    residuals.of(5, A_THEN_B).fill_(1)
    for wrong in (
        torch.tensor([float("nan")]),
        torch.zeros(2, 2),
        torch.zeros(2, dtype=torch.float64),
        [0.0],
        1.0,
        None,
        torch.zeros(2, dtype=torch.float16),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
    ):
        with pytest.raises(ConfigurationError, match="'a' is not a finite 1-D float32"):
            residuals.load({"a": wrong})
    assert residuals.energy() == pytest.approx(5)
    loaded = Residuals()
    loaded.load({"a": torch.zeros(3)})
    with pytest.raises(ConfigurationError, match=r"'a' has 3 elements and its gradient 2"):
        loaded.of(5, A_THEN_B)


@pytest.mark.parametrize("after", [512.0, 2048.0])
def test_engines_scale_their_residuals_as_the_loss(after: float) -> None:
    scaler: Any = Mock(spec=["get_scale"])
    engine = Mock(spec=Engine)
    scaling = LossScaling(scaler, [engine])
    for scale in (1024.0, 1024.0, after):
        scaler.get_scale.return_value = scale
        scaling.begin_backward()
    assert engine.scale_residuals.mock_calls == [call(after / 1024)]
    assert engine.use_loss_scale.mock_calls == [call(1024.0), call(after)]


def test_the_residuals_of_all_layouts_are_scaled() -> None:
    residuals = Residuals()
    first, second = (residuals.of(4, (ParameterSlice(key, 0, 4),)) for key in ("a", "b"))
    first[:], second[:] = torch.arange(4), 2
    residuals.scale(0.5)
    assert first.tolist() == [0, 0.5, 1, 1.5]
    assert second.tolist() == [1, 1, 1, 1]
