"""When to synchronise."""

from __future__ import annotations

from pydantic import Field

from byteps_thc._scheme.settings import Settings


class SynchronizationSettings(Settings):
    """Arguments of ParameterSynchronizer, which says what they mean; the same on all ranks."""

    synchronize_every: int | None = Field(default=None, ge=1)
    max_drift: float | None = Field(default=None, ge=1e-5)
    max_loss_rate: float | None = Field(default=None, ge=0, lt=1)
    check_every: int = Field(default=100, ge=1)

    @property
    def checks(self) -> bool:
        """Whether there is something to check."""
        return self.max_drift is not None or self.max_loss_rate is not None

    @property
    def automatic(self) -> bool:
        """Whether steps are counted for something."""
        return self.checks or self.synchronize_every is not None
