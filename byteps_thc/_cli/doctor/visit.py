"""A visit to a server: joins it as the only worker of a job that no training has."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from byteps_thc._scheme.config import ThcConfig

if TYPE_CHECKING:  # compiled modules may not load
    from byteps_thc._net.session import Session


@dataclass(frozen=True)
class Visit:
    """Which server to join, and how.

    server: host, an IPv6 address in brackets, and port. key_file: of the server's keys, None: as THC_KEY_FILE says.
    job: None: a random one.
    """

    server: tuple[str, int]
    key_file: str | None = None
    job: int | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.server[0]}:{self.server[1]}"

    def join(self, codes_per_packet: int | Literal["auto"], *, connect_s: float, operation_s: float) -> Session:
        """Return a new session. Raises what Session raises."""
        from byteps_thc._net.session import Session, Timeouts

        return Session(
            [self.address],
            job=secrets.randbelow(1 << 15) + (1 << 15) if self.job is None else self.job,
            worker=0,
            workers=1,
            config=ThcConfig(codes_per_packet=codes_per_packet),
            timeouts=Timeouts(connect_s=connect_s, operation_s=operation_s),
            key=self.key_file,
        )
