"""Memory of pieces in host memory: their codes, and of what arrives as much as is under way at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from byteps_thc import ThcConfig, _core
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.ranks import Collectives, HostSums, RanksTransport, TurnsTransfer
from byteps_thc.transport.shards import Turns

CODES = 4096


class Done:
    def wait(self) -> None:
        pass


class Alone:
    """Collectives of one rank."""

    def all_to_all(self, output: Tensor, source: Tensor) -> Done:
        output.copy_(source)
        return Done()

    all_gather = all_to_all


def bytes_of(turns: Turns) -> int:
    free = sum(memory.nbytes for memories in turns._free.values() for memory in memories)
    return free + sum(memory.nbytes for memory in turns._shared.values())


@pytest.mark.parametrize("settings", [{"bits": 4}, {"bits": 4, "value_bits": 16}, {"bits": 8, "granularity": 255}])
def test_pieces_that_follow_one_another_use_the_same_memory(settings: dict[str, Any]) -> None:
    """As many as are under way at a time have some of their own, and their sums are right all the same."""
    resolved = ThcConfig(**settings).resolve(1, packed_sums=True)
    alone: Any = Alone()
    transport = RanksTransport(resolved, Collectives(alone, alone, alone), StatsRecorder(), HostSums(resolved))
    turns = transport.turns
    assert turns is not None
    random, sizes = np.random.default_rng(0), []
    pieces = [transport.new_transfer(f"piece {number}", 1, CODES) for number in range(8)]
    for number in range(0, len(pieces), 2):  # two at a time
        pair = pieces[number : number + 2]
        for piece in pair:
            assert isinstance(piece, TurnsTransfer)
            piece.codes[:] = random.integers(0, 256, piece.codes.size, np.uint8)
            piece.send_codes()
        for piece in pair:
            piece.wait_codes()
            piece.sum(lambda *_: None)
            piece.send_sums()
        for piece in pair:
            piece.wait_sums()
            sums, _ = piece.aggregate()
            exact = np.zeros(CODES, sums.dtype)
            _core.lookup_sum(piece.codes, resolved.table.array, exact, bits=resolved.table.bits, add=False)
            assert (sums == exact).all()
            transport.done(piece)
        sizes.append(bytes_of(turns))
    assert sizes[0] > 0
    assert sizes == sizes[:1] * len(sizes)


def test_shared_memory_grows_to_what_the_largest_piece_takes() -> None:
    turns = Turns(ThcConfig(bits=4).resolve(1, packed_sums=True))
    for elements in (10, 30, 20):
        assert turns.shared("values", elements, torch.uint8).shape == (elements,)
    assert bytes_of(turns) == 30
