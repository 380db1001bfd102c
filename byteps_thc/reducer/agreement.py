"""Do all ranks average the same tensors in the same order? Asked before codes of different tensors are added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn, Protocol

import numpy as np
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.errors import InputError
from byteps_thc.pipeline.fingerprint import LARGEST_WORD
from byteps_thc.reducer.tensor_packing import Packing
from byteps_thc.transport.gloo import GlooCommunicator
from byteps_thc.transport.handshake import all_have_same, first_difference, gather_by_rank, gather_over
from byteps_thc.transport.mesh import MeshGroups, gather_by_rank_over_mesh
from byteps_thc.transport.transport import Transfer, Transport

_HINT = "all ranks must pass the same names, sizes and dtypes in the same order"


class Agreement(Protocol):
    """Asks the other ranks; called by one thread."""

    def require_same(self, packing: Packing, in_flight: Iterable[Future[Tensor]]) -> None:
        """Raise InputError on all ranks unless all ask for the same packing; TransportError or DeadlineError.

        in_flight: of the engine, everything that has been asked for before and may not have arrived.
        """

    def close(self) -> None:
        """Let go of what it asks with, when nobody asks any more."""
        return


class NoAgreement(Agreement):
    """Of one rank with itself."""

    @override
    def require_same(self, packing: Packing, in_flight: Iterable[Future[Tensor]]) -> None:
        pass


class RanksAgreement(Agreement):
    """Asks before every call, with 16 bytes to each rank. communicator: nobody else uses it; ends with this."""

    def __init__(self, communicator: GlooCommunicator, ranks: int) -> None:
        self._communicator, self._ranks = communicator, ranks

    @override
    def close(self) -> None:
        self._communicator.close()

    @override
    def require_same(self, packing: Packing, in_flight: Iterable[Future[Tensor]]) -> None:
        """Raise InputError naming the first tensor that differs."""
        if not all_have_same(self._communicator, packing.fingerprint):
            _refuse(gather_by_rank(gather_over(self._communicator, self._ranks), "\n".join(packing.description)))


class LevelsAgreement(Agreement):
    """As RanksAgreement, on a node and then between the nodes. fast, slow: communicators that nobody else uses."""

    def __init__(self, fast: GlooCommunicator, slow: GlooCommunicator, levels: MeshGroups) -> None:
        self._fast, self._slow, self._levels = fast, slow, levels

    @override
    def close(self) -> None:
        self._fast.close()
        self._slow.close()

    @override
    def require_same(self, packing: Packing, in_flight: Iterable[Future[Tensor]]) -> None:
        """Raise InputError naming the first tensor that differs."""
        if all_have_same(self._fast, packing.fingerprint, self._slow):
            return
        described = "\n".join(packing.description)
        fast = gather_over(self._fast, self._levels.fast.size())
        slow = gather_over(self._slow, self._levels.slow.size())
        _refuse(gather_by_rank_over_mesh(fast, slow, described))


class ServersAgreement(Agreement):
    """Asks the servers for the maximum of what stands for the packing, once for each: the engine finds a different
    order of what is known.

    Its norms are numbered with those of gradients, which must have left before, on all workers.
    """

    def __init__(self, transport: Transport) -> None:
        self._transfer: Transfer = transport.new_transfer("agreement", 4, 0)
        self._known: set[int] = set()

    @override
    def require_same(self, packing: Packing, in_flight: Iterable[Future[Tensor]]) -> None:
        if packing.fingerprint in self._known:
            return
        for future in in_flight:
            future.wait()
        # Also beside a gradient of a worker that knows the packing, all notice: see pipeline/fingerprint.py.
        halves = (packing.fingerprint & LARGEST_WORD, packing.fingerprint >> 31)
        mine = np.array([word for half in halves for word in (half, LARGEST_WORD - half)], np.int32)
        self._transfer.send_norms(mine.view(np.float32))
        largest = self._transfer.wait_norms().view(np.int32)
        if largest.any() and not np.array_equal(largest, mine):  # zeros: a quorum has left this worker behind
            first = packing.description[0] if packing.description else "none"
            raise InputError(
                f"workers average different tensors; here {len(packing.description)}, beginning with {first}: {_HINT}"
            )
        self._known.add(packing.fingerprint)


def _refuse(descriptions: Mapping[int, str]) -> NoReturn:
    number, who = first_difference(descriptions)
    raise InputError(f"ranks average different tensors: number {number} is {who}; {_HINT}")
