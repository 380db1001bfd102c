"""What stages took; nothing is clamped, and nothing kept, where ranks decode."""

from __future__ import annotations

from typing_extensions import override

from byteps_thc.pipeline.figures import Figures
from byteps_thc.pipeline.statistics import StatsRecorder


class RankFigures(Figures):
    """Times of the engine."""

    def __init__(self, recorder: StatsRecorder) -> None:
        self._recorder = recorder

    @override
    def start_step(self) -> None:
        pass

    @override
    def read(self) -> None:
        pass

    @override
    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        self._recorder.add_time(encode_ms=encode_ms, communicate_ms=communicate_ms, decode_ms=decode_ms)
