"""A visit to a server: joins it as the only worker of a job that no training has."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from byteps_thc._scheme.adding.server_codes import ServerCodes

if TYPE_CHECKING:  # compiled modules may not load
    from byteps_thc._net.session import Session


@dataclass(frozen=True)
class Visit:
    """How to join a server. server: host (IPv6 in brackets), port. key_file: None: THC_KEY_FILE. job: None: random."""

    server: tuple[str, int]
    key_file: str | None = None
    job: int | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.server[0]}:{self.server[1]}"

    def join(self, codes_per_packet: int | Literal["auto"], *, connect_s: float, operation_s: float) -> Session:
        """Return a new session. Raises Session's errors."""
        from byteps_thc._net.session import Session, Timeouts

        return Session(
            [self.address],
            job=secrets.randbelow(1 << 15) + (1 << 15) if self.job is None else self.job,
            worker=0,
            workers=1,
            codes=ServerCodes(codes_per_packet=codes_per_packet),
            timeouts=Timeouts(connect_s=connect_s, operation_s=operation_s),
            key=self.key_file,
        )
