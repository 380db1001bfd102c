"""What the settings of all baselines have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from byteps_thc.baselines.codec import Codec
from byteps_thc.baselines.memory import Memory
from byteps_thc.config import explain
from byteps_thc.errors import ConfigurationError


class BaselineConfig(BaseModel):
    """Settings of one scheme, the same on all workers. Raises ConfigurationError when they are not valid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigurationError(explain(error)) from error


class CodecConfig(BaselineConfig):
    """Settings of a scheme that encodes vectors; workers exchange their payloads with an all-gather."""

    @abstractmethod
    def codec(self) -> Codec:
        """Return the encoder and decoder."""

    @abstractmethod
    def memory(self, workers: int) -> Memory:
        """Return what one of `workers` workers keeps between steps, empty."""
