"""Residuals follow their parameters from layout to layout."""

from __future__ import annotations

import pytest
import torch

from byteps_thc._engine.engine import ParameterSlice
from byteps_thc._engine.residuals import Residuals
from byteps_thc._scheme.errors import ConfigurationError

A_THEN_B = (ParameterSlice("a", 0, 2), ParameterSlice("b", 2, 5))
B_THEN_A = (ParameterSlice("b", 0, 3), ParameterSlice("a", 4, 6))


def test_residuals_move_to_another_layout_and_back() -> None:
    residuals = Residuals()
    first = residuals.of("first", 5, A_THEN_B)
    first[:] = torch.arange(5)
    second = residuals.of("second", 6, B_THEN_A)
    assert second.tolist() == [2, 3, 4, 0, 0, 1]
    assert residuals.of("second", 6, B_THEN_A) is second
    second *= 10
    assert residuals.of("first", 5, A_THEN_B).tolist() == [0, 10, 20, 30, 40]
    assert {name: part.tolist() for name, part in residuals.state().items()} == {"a": [0, 10], "b": [20, 30, 40]}


def test_a_parameter_that_leaves_takes_its_part_only() -> None:
    residuals = Residuals()
    residuals.of("first", 5, A_THEN_B)[:] = torch.arange(5)
    assert residuals.of("alone", 3, (ParameterSlice("b", 0, 3),)).tolist() == [2, 3, 4]
    assert residuals.state()["a"].tolist() == [0, 1]


def test_several_slices_of_a_parameter() -> None:
    residuals = Residuals()
    shards = (
        ParameterSlice("a", 0, 2),
        ParameterSlice("b", 2, 3),
        ParameterSlice("a", 3, 5),
        ParameterSlice("b", 5, 6),
    )
    residuals.of("shards", 6, shards)[:] = torch.arange(6)
    assert {name: part.tolist() for name, part in residuals.state().items()} == {"a": [0, 1, 3, 4], "b": [2, 5]}
    whole = (ParameterSlice("a", 0, 4), ParameterSlice("b", 4, 6))
    assert residuals.of("whole", 6, whole).tolist() == [0, 1, 3, 4, 2, 5]


def test_state_is_a_copy_and_comes_back() -> None:
    residuals = Residuals()
    flat = residuals.of("first", 5, A_THEN_B)
    flat[:] = torch.arange(5)
    assert residuals.energy() == pytest.approx(30)
    state = residuals.state()
    flat.zero_()
    loaded = Residuals()
    loaded.load(state)
    state["a"].fill_(7)
    loaded.scale(2)
    assert loaded.of("second", 6, B_THEN_A).tolist() == [4, 6, 8, 0, 0, 2]


def test_wrong_states_are_refused_and_change_nothing() -> None:
    residuals = Residuals()
    residuals.of("first", 5, A_THEN_B).fill_(1)
    for wrong in (
        torch.tensor([float("nan")]),
        torch.zeros(2, 2),
        torch.zeros(2, dtype=torch.float64),
        [0.0],
        None,
        torch.zeros(2, dtype=torch.float16),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
    ):
        with pytest.raises(ConfigurationError, match="'a' is not a finite 1-D float32"):
            residuals.load({"a": wrong})
    assert residuals.energy() == pytest.approx(5)
    residuals.load({"a": torch.zeros(3)})
    with pytest.raises(ConfigurationError, match=r"'a' has 3 elements and its gradient 2"):
        residuals.of("first", 5, A_THEN_B)
