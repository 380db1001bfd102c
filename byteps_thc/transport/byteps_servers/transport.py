"""The engine's transport over BytePS's own servers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, HostZeros, everybody
from byteps_thc.errors import InputError
from byteps_thc.transport.byteps_servers.exchange import BytepsExchange, ExchangeHandle, PartitionShape
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.transport import Transfer, Transport


class BytepsTransport(Transport):
    """Hands out the partitions first .. first + len(shapes) - 1 of an exchange.

    BytePS fixes its keys in advance, so all pieces must be among `shapes`. priority: of this lane's pushes; the highest
    goes first when BYTEPS_SCHEDULING_CREDIT is set. zeros: what makes the arrays that codes travel in.
    """

    codes_per_chunk: int | None = None

    def __init__(
        self,
        exchange: BytepsExchange,
        shapes: Sequence[PartitionShape],
        *,
        first: int,
        workers: int,
        code_bits: int,
        priority: int,
        recorder: TrafficRecorder,
        zeros: HostZeros = np.zeros,
    ) -> None:
        self.exchange = exchange
        self.zeros = zeros
        self.priority = priority
        self.recorder = recorder
        self.contributions = everybody(workers)
        self._code_bits = code_bits
        self._partitions = {shape.name: (first + number, shape) for number, shape in enumerate(shapes)}

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> BytepsTransfer:
        """Return a transfer of the partition of that name; InputError when there is none of that size."""
        number, shape = self._partitions.get(name, (0, None))
        if shape is None or (shape.norms, shape.padded) != (norms, codes):
            raise InputError(f"piece {name!r} of {norms} norms and {codes} codes is none of BytePS's partitions")
        return BytepsTransfer(self, number, _core.code_bytes(codes, self._code_bits))


class BytepsTransfer(Transfer):
    """One partition of the exchange. The servers sum, so there is nothing for a worker to relay."""

    def __init__(self, transport: BytepsTransport, partition: int, code_bytes: int) -> None:
        self._transport = transport
        self._partition = partition
        self.codes: U8 = transport.zeros(code_bytes, np.uint8)
        self._norm_handle: ExchangeHandle[F32]
        self._code_handle: ExchangeHandle[U8 | U16]
        self._sums: U8 | U16 = self.codes

    @override
    def send_norms(self, norms: F32) -> None:
        transport = self._transport
        self._norm_handle = transport.exchange.max_norms(self._partition, norms, priority=transport.priority)
        rows_bytes = norms.nbytes * int(transport.contributions[0])  # a row for every worker travels, both ways
        transport.recorder.add_traffic(sent_bytes=rows_bytes, received_bytes=rows_bytes)

    @override
    def wait_norms(self) -> F32:
        return self._transport.exchange.wait(self._norm_handle)

    @override
    def send_codes(self) -> None:
        transport = self._transport
        self._code_handle = transport.exchange.push_codes(self._partition, self.codes, priority=transport.priority)
        transport.recorder.add_traffic(sent_bytes=self.codes.nbytes)

    @override
    def wait_sums(self) -> None:
        self._sums = self._transport.exchange.wait(self._code_handle)
        self._transport.recorder.add_traffic(received_bytes=self._sums.nbytes)

    @override
    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        return self._sums, self._transport.contributions
