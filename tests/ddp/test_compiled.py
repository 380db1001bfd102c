"""torch.compile with hooks that get no buckets."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from byteps_thc import ConfigurationError
from byteps_thc.ddp import thc_hook
from byteps_thc.ddp.state import UncompressedState


def test_the_python_reducer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="python_reducer"):
        thc_hook(cast(Any, UncompressedState()), (torch.zeros(3), torch.zeros(3)))
