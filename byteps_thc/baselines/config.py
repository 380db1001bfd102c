"""What the settings of all baselines have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from byteps_thc.baselines.codec import Codec
from byteps_thc.baselines.memory import Memory
from byteps_thc.settings import Settings


class BaselineConfig(Settings):
    """Settings of one scheme, the same on all workers. Raises ConfigurationError when they are not valid."""

    def shared_settings(self) -> dict[str, Any]:
        """Return what must be the same on all workers: the scheme's name and its settings, plain values."""
        return {"scheme": type(self).__name__} | self.model_dump()


class CodecConfig(BaselineConfig):
    """Settings of a scheme that encodes vectors; workers exchange their payloads with an all-gather."""

    @abstractmethod
    def codec(self) -> Codec:
        """Return the encoder and decoder."""

    @abstractmethod
    def memory(self, workers: int) -> Memory:
        """Return what one of `workers` workers keeps between steps, empty."""
