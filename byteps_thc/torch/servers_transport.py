"""The engine's transport over BytePS's own servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16
from byteps_thc.errors import InputError
from byteps_thc.statistics import StatsRecorder
from byteps_thc.torch.servers_exchange import PartitionShape, ServersExchange


class ServersTransport:
    """See engines.transport.Transport. Hands out the partitions first .. first + len(shapes) - 1 of an exchange.

    BytePS fixes its keys in advance, so transfers must be made in the order of `shapes`. priority: of this lane's
    pushes; the highest goes first when BYTEPS_SCHEDULING_CREDIT is set.
    """

    codes_per_chunk = None

    def __init__(
        self,
        exchange: ServersExchange,
        shapes: Sequence[PartitionShape],
        *,
        first: int,
        workers: int,
        code_bits: int,
        priority: int,
        recorder: StatsRecorder,
    ) -> None:
        self.exchange = exchange
        self.priority = priority
        self.recorder = recorder
        self.contributions: U8 = np.full(1, workers, np.uint8)
        self._code_bits = code_bits
        self._shapes = shapes
        self._first = first
        self._made = 0

    def new_transfer(self, blocks: int, codes: int) -> ServersTransfer:
        """See Transport. After the last shape the first one comes again: an engine that loads a state starts over.

        InputError when the piece is not the next one of the shapes.
        """
        number = self._made % len(self._shapes)
        shape = self._shapes[number]
        if (shape.blocks, shape.padded) != (blocks, codes):
            raise InputError(f"piece of {blocks} blocks and {codes} codes does not fit partition {shape}")
        self._made += 1
        return ServersTransfer(self, self._first + number, _core.code_bytes(codes, self._code_bits))

    def close(self) -> None:
        """BytePS itself ends with shutdown()."""


class ServersTransfer:
    """See engines.transport.Transfer."""

    def __init__(self, transport: ServersTransport, partition: int, code_bytes: int) -> None:
        self._transport = transport
        self._partition = partition
        #: See Transfer.
        self.codes: U8 = np.zeros(code_bytes, np.uint8)
        self._norm_handle: Any = None
        self._code_handle: Any = None
        self._sums: U8 | U16 = self.codes

    def send_norms(self, norms: F32) -> None:
        """See Transfer."""
        transport = self._transport
        self._norm_handle = transport.exchange.max_norms(self._partition, norms, priority=transport.priority)
        rows_bytes = norms.nbytes * int(transport.contributions[0])  # a row for every worker travels, both ways
        transport.recorder.add_traffic(sent_bytes=rows_bytes, received_bytes=rows_bytes)

    def wait_norms(self) -> F32:
        """See Transfer."""
        max_norms: F32 = self._transport.exchange.wait(self._norm_handle)
        return max_norms

    def send_codes(self) -> None:
        """See Transfer."""
        transport = self._transport
        self._code_handle = transport.exchange.push_codes(self._partition, self.codes, priority=transport.priority)
        transport.recorder.add_traffic(sent_bytes=self.codes.nbytes)

    def wait_codes(self) -> None:
        """See Transfer: the servers sum."""

    def send_sums(self) -> None:
        """See Transfer: the servers sum."""

    def wait_sums(self) -> None:
        """See Transfer."""
        self._sums = self._transport.exchange.wait(self._code_handle)
        self._transport.recorder.add_traffic(received_bytes=self._sums.nbytes)

    def aggregate(self) -> tuple[U8 | U16, U8]:
        """See Transfer."""
        return self._sums, self._transport.contributions
