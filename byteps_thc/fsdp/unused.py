"""What happens to gradients of a group when some of its parameters were not used."""

from __future__ import annotations

import logging

_logger = logging.getLogger("byteps_thc")


class UnusedWarning:
    """Says once that a group's gradients travel uncompressed, because torch leaves out what was not used."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._given = False

    def give(self) -> None:
        """Log it, the first time."""
        if not self._given:
            self._given = True
            _logger.warning(
                "module %r: some parameters got no gradient, and torch does not say which. They must be the same on "
                "all ranks, and the module's gradients travel uncompressed in such steps: freeze these parameters "
                "(requires_grad=False), or call set_reduce_scatter_unused_params(True)",
                self._group,
            )
