"""Residuals as they were before a step, for when a GradScaler skips it and nobody gets what its codes carried."""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class Rollback:
    """Copies residuals before they are overwritten, and brings them back when an average was not finite.

    Does nothing before the first begin(). save() of a residual is called by one thread, request() and forget_unsaved()
    by any; the others when nothing is in flight.
    """

    def __init__(self) -> None:
        self.active = False
        self._requested = False
        self._lock = threading.Lock()  # of what is saved, between save() and forget_unsaved()
        self._saved: set[tuple[int, tuple[int, ...]]] = set()  # in this step
        #: address and shape of a residual -> itself, which keeps it alive, and memory for its copy
        self._copies: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}

    def begin(self) -> None:
        """Begin a step, after rolling back the one before if that was requested."""
        self.apply()
        self.active = True
        self._requested = False
        self._saved.clear()

    def save(self, residual: Tensor) -> None:
        """Copy a residual that is about to be overwritten, the first time in a step. Always cut in the same way."""
        if not self.active:
            return
        key = (residual.data_ptr(), tuple(residual.shape))
        with self._lock:
            if key in self._saved:
                return
            if key not in self._copies:
                self._copies[key] = (residual, torch.empty_like(residual))
            self._copies[key][1].copy_(residual)
            self._saved.add(key)

    def request(self) -> None:
        """Note that an average of the step is not finite: the step will be skipped."""
        self._requested = True

    def request_unless(self, fine: bool | Tensor) -> None:
        """As request(), unless that is so: a bool, or a tensor of one element."""
        if self.active and not fine:
            self.request()

    def restore(self) -> None:
        """Bring the residuals back to what they were at begin(); what is saved is kept."""
        for key in self._saved:
            residual, copy = self._copies[key]
            residual.copy_(copy)

    def apply(self) -> None:
        """As restore(), if that was requested."""
        if self._requested:
            self.restore()

    def release(self) -> None:
        """Call before residuals change or move outside of save(): apply(), and forget()."""
        self.apply()
        self.forget()

    def forget_unsaved(self) -> None:
        """Let go of the copies of steps before: some of these residuals move. What this step has saved stays."""
        with self._lock:
            self._copies = {key: self._copies[key] for key in self._saved}

    def forget(self) -> None:
        """Let go of all copies: the residuals have moved, or are other ones. The rest of the step begins here."""
        self._saved.clear()
        self._copies.clear()
