"""Watches the packets of a job, and checks the rules EXACT, SAME, STRAGGLES, IS_IN of tests/model/protocol.pml.

It must see every packet of a worker before the aggregator does; after that, order, loss and copies do not matter to it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import _core_test
import numpy as np
import numpy.typing as npt

from byteps_thc._scheme.tables import LookupTable
from byteps_thc._scheme.wire.layout import ErrorPayload, ErrorReason, Flag, Header, MessageType


class ProtocolViolationError(AssertionError):
    """A packet that the rules do not allow."""


@dataclass
class _Round:
    """One round of a slot in an epoch."""

    sent: dict[int, bytes] = field(default_factory=dict)
    """payloads of NORM or CODES by worker"""
    abstained: set[int] = field(default_factory=set)
    """workers whose codes do not count: a quorum left them behind in the norms"""
    asked: set[int] = field(default_factory=set)
    """workers that sent with the retransmit flag"""
    result: bytes | None = None
    """payload of the first result"""
    contributions: int = 0
    """what the first result says"""

    def contributors(self) -> list[int]:
        """Workers whose payload may be in the result."""
        return sorted(self.sent.keys() - self.abstained)


class SlotMonitor:
    """Checks one job. table: its lookup table. Datagrams are UDP payloads."""

    def __init__(self, table: LookupTable, *, workers: int, quorum: int | None = None) -> None:
        self._values = np.asarray(table.values, np.int64)
        self._bits = table.bits
        self._workers = workers
        self._quorum = quorum or workers
        self._rounds: dict[tuple[int, int, int], _Round] = {}
        self._highest: dict[tuple[int, int], int] = {}
        self._epochs: set[int] = set()
        #: messages that were checked, by type
        self.checked: Counter[str] = Counter()

    def up(self, datagram: bytes) -> None:
        """Note a worker's datagram, before the aggregator gets it."""
        header = Header.unpack(datagram)
        if header.message_type not in (MessageType.NORM, MessageType.CODES):
            return
        this = self._rounds.setdefault((header.epoch, header.slot, header.round), _Round())
        payload = datagram[Header.SIZE_BYTES :]
        if this.sent.setdefault(header.worker_id, payload) != payload:
            raise ProtocolViolationError(f"worker {header.worker_id} sends something else than before: {header}")
        if header.flags & Flag.ABSTAIN:
            this.abstained.add(header.worker_id)
        if header.flags & Flag.RETRANSMIT:
            this.asked.add(header.worker_id)
        slot = header.epoch, header.slot
        self._highest[slot] = max(self._highest.get(slot, 0), header.round)

    def down(self, datagram: bytes) -> None:
        """Check an aggregator's datagram; raises ProtocolViolationError."""
        header = Header.unpack(datagram)
        kind = MessageType(header.message_type)
        self.checked[kind.name.lower()] += 1
        payload = datagram[Header.SIZE_BYTES :]
        if kind is MessageType.WELCOME:
            self._epochs.add(header.epoch)
        elif kind in (MessageType.MAX_NORM, MessageType.AGGREGATE):
            self._check_result(header, payload)
        elif kind is MessageType.STRAGGLER:
            self._check_straggler(header)
        elif kind is MessageType.ERROR:
            self._check_error(header, ErrorPayload.unpack(payload))
        elif kind not in (MessageType.CHALLENGE, MessageType.PROBE):  # they change no slot
            raise ProtocolViolationError(f"an aggregator does not send this: {header}")

    def _check_result(self, header: Header, payload: bytes) -> None:
        """EXACT: each of so many workers once, all of this round and epoch. SAME: as before."""
        this = self._rounds.get((header.epoch, header.slot, header.round), _Round())
        if not self._quorum <= header.contributions <= self._workers:
            raise ProtocolViolationError(f"{header.contributions} contributions, quorum {self._quorum}: {header}")
        if this.result is None:
            sets = itertools.combinations(this.contributors(), header.contributions)
            if not any(self._result_of(header, [this.sent[w] for w in workers]) == payload for workers in sets):
                raise ProtocolViolationError(
                    f"not what {header.contributions} of workers {this.contributors()} sent: {header}"
                )
            this.result, this.contributions = payload, header.contributions
        elif (this.result, this.contributions) != (payload, header.contributions):
            raise ProtocolViolationError(f"another result than before: {header}")

    def _result_of(self, header: Header, payloads: list[bytes]) -> bytes:
        if header.message_type == MessageType.MAX_NORM:
            return np.max([np.frombuffer(payload, ">u4") for payload in payloads], axis=0).astype(">u4").tobytes()
        total = sum(self._values[self._codes(payload, header.payload_count)] for payload in payloads)
        return np.asarray(total).astype(">u1" if header.value_bits == 8 else ">u2").tobytes()

    def _codes(self, payload: bytes, count: int) -> npt.NDArray[np.uint8]:
        codes = np.empty(count, np.uint8)
        _core_test.unpack(np.frombuffer(payload, np.uint8).copy(), codes, bits=self._bits)
        return codes

    def _check_straggler(self, header: Header) -> None:
        """STRAGGLES: somebody is in a later round of the slot."""
        if header.round >= self._highest.get((header.epoch, header.slot), 0):
            raise ProtocolViolationError(f"nobody was past that round: {header}")

    def _check_error(self, header: Header, error: ErrorPayload) -> None:
        if error.reason == ErrorReason.INCOMPLETE:
            this = self._rounds.get((header.epoch, header.slot, header.round), _Round())
            seen = {worker for worker in range(self._workers) if error.worker_bitmap >> worker & 1}
            if header.worker_id not in this.asked or not seen <= set(this.contributors()):  # IS_IN
                raise ProtocolViolationError(
                    f"workers {sorted(seen)} of {this.contributors()} were seen, asked or not: {header}"
                )
            if self._quorum == self._workers and (header.worker_id not in seen or len(seen) == self._workers):
                raise ProtocolViolationError(f"incomplete, with workers {sorted(seen)}: {header}")
        elif error.reason == ErrorReason.STALE_EPOCH and self._epochs <= {header.epoch}:  # IS_EPOCH
            raise ProtocolViolationError(f"no other epoch has begun: {header}")
