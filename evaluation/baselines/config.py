"""Base of all codecs' settings."""

from abc import abstractmethod

from baselines.codec import Codec
from baselines.memory import Memory
from byteps_thc._base.settings import Settings


class CodecConfig(Settings):
    """Settings of a scheme that encodes vectors. Raises ConfigurationError when they are not valid."""

    @abstractmethod
    def codec(self) -> Codec:
        """Return the encoder and decoder."""

    @abstractmethod
    def memory(self, workers: int) -> Memory:
        """Return the memory of one of `workers` workers, empty."""
