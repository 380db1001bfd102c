"""Counters by index."""

from collections.abc import Callable
from typing import NamedTuple

from thc_p4_model.errors import ControlError
from thc_p4_model.externs.runtime import PassState
from thc_p4_model.interfaces import CallInfo, ExternInfo, P4Error


class Count(NamedTuple):
    """A counter's counts; an uncounted quantity stays 0."""

    packets: int
    bytes: int

    def __add__(self, other: object) -> "Count":
        """The sum, of counters in several pipes."""
        if not isinstance(other, Count):
            return NotImplemented
        return Count(self.packets + other.packets, self.bytes + other.bytes)


class CounterArray:
    """`counter` of v1model and `Counter` of TNA: (size, kind)."""

    def __init__(self, info: ExternInfo, state: PassState) -> None:
        size, kind = info.args[:2]
        self.name = info.name
        self._state = state
        self._counts_packets = "packets" in kind.lower()
        self._counts_bytes = "bytes" in kind.lower()
        self._packets = [0] * size
        self._bytes = [0] * size

    def __len__(self) -> int:
        return len(self._packets)

    def bind_count(self, call: CallInfo) -> Callable[..., None]:
        """`void count(in I index, @optional in bit<32> adjust_byte_count)`; the adjustment is subtracted, as in TNA."""
        packets, byte_counts, state = self._packets, self._bytes, self._state

        def count(index: int, adjust_byte_count: int | None = None) -> None:
            if not 0 <= index < len(packets):
                raise P4Error(call.location, f"index {index} is outside counter {self.name} of size {len(packets)}")
            packets[index] += 1
            byte_counts[index] += state.packet_bytes - (adjust_byte_count or 0)

        return count

    def get(self, index: int) -> Count:
        """Read a count, for the control plane."""
        if not 0 <= index < len(self._packets):
            raise ControlError(f"index {index} is outside counter {self.name} of size {len(self._packets)}")
        return Count(
            self._packets[index] if self._counts_packets else 0, self._bytes[index] if self._counts_bytes else 0
        )

    def reset(self) -> None:
        """All counts to 0."""
        self._packets[:] = [0] * len(self._packets)
        self._bytes[:] = [0] * len(self._bytes)
