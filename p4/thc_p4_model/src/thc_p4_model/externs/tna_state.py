"""The TNA externs' view of the pass in progress, and the requests of a deparser."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thc_p4_model.externs.runtime import PassState

MAX_DIGESTS = 1024


class MirrorRequest(NamedTuple):
    """A copy to a mirror session, behind the bits of its header."""

    session: int
    header: bytes


@dataclass(eq=False)
class TnaState(PassState):
    """One pipe's pass in progress."""

    port_metadata_bytes: int = 8
    """Between the intrinsic metadata and the packet in the ingress parser."""
    gress: str = "ingress"
    mirror: MirrorRequest | None = None
    resubmit: bytes | None = None
    digests: deque[tuple[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_DIGESTS))
    """(name of the Digest, data) for the control plane; the oldest is lost if the control plane is slow."""

    def begin(self, gress: str, packet_bytes: int) -> None:
        """A pass starts."""
        self.number += 1
        self.gress = gress
        self.packet_bytes = packet_bytes
        self.mirror = None
        self.resubmit = None
