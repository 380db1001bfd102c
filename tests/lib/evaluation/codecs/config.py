"""What the settings of all codecs have in common."""

from __future__ import annotations

from abc import abstractmethod

from byteps_thc.settings import Settings
from evaluation.codecs.codec import Codec
from evaluation.codecs.memory import Memory


class CodecConfig(Settings):
    """Settings of a scheme that encodes vectors. Raises ConfigurationError when they are not valid."""

    @abstractmethod
    def codec(self) -> Codec:
        """Return the encoder and decoder."""

    @abstractmethod
    def memory(self, workers: int) -> Memory:
        """Return the memory of one of `workers` workers, empty."""
