"""Residuals follow the scale of a GradScaler."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from byteps_thc._engine.engine import Engine, ParameterSlice
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.residuals import Residuals
from byteps_thc._engine.steps import LossScaling


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


def test_a_state_scales_the_residuals_of_all_layouts() -> None:
    residuals = Residuals()
    first, second = (residuals.of(key, 4, (ParameterSlice(key, 0, 4),)) for key in ("a", "b"))
    first[:], second[:] = torch.arange(4), 2
    EngineState(0, 2, {}, residuals=residuals).scale(0.5)
    assert first.tolist() == [0, 0.5, 1, 1.5]
    assert second.tolist() == [1, 1, 1, 1]
