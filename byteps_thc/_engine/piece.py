"""The pieces of a gradient, each with four stages:

    measure -> encode -> sum -> decode

Stages, layouts and engines know nothing else of a scheme. Servers add the codes of the pieces in adding/, and ranks
decode the codes of the pieces in decoding/.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor


class Piece(Protocol):
    """The stages of a piece, in this order; each is called by one thread. Tensors are flat, where the kernels work.

    By default a stage does nothing.
    """

    def measure(self, gradient: Tensor, round: int) -> None:
        """Begin a round with a gradient, row by row, which must not change until encode() is over.

        round: random key, the same on all workers, never used twice.

        Sends the first message to the other workers, norms or codes, unless encode() does. May overwrite exact values
        and padding.
        """

    def encode(self) -> None:
        """Send the codes, if they have not left yet. Raises InputError as sum() does."""
        return

    def sum(self) -> None:
        """Average this worker's share, if it has one.

        Raises InputError on all workers if they have measured different gradients; nothing has changed then.
        """
        return

    def decode(self, out: Tensor) -> None:  # noqa: ARG002  most pieces write
        """Write the average of the piece's columns to `out`, a row."""
        return


#: Returns the pieces of a gradient that travels compressed (True) or not (False), at least one.
Pieces = Callable[[bool], Sequence[Piece]]
